"""Table rows with columns of text, integers and floats; the model learns two targets from each."""

import numpy as np

CITIES = ("Bergen", "Graz", "Lyon", "Porto")


def list_parts():
    return [{"seed": seed} for seed in range(2)]


def read_part(part):
    random = np.random.default_rng(part["seed"])
    for number in range(500):
        city, rooms = int(random.integers(len(CITIES))), int(random.integers(1, 7))
        area = random.normal(25 * rooms, 5)
        yield (
            f"{part['seed']}-{number}",
            {
                "city": CITIES[city],
                "rooms": np.int32(rooms),
                "area": np.float32([area / 100, random.normal()]),
                "price": np.float32(area / 100 + 0.5 * city),
                "sold": city % 2 == 0,
            },
        )


def transform(features):
    inputs = {name: features[name] for name in ("city", "rooms", "area")}
    return inputs, {"price": features["price"], "sold": features["sold"]}


def build_model(hparams):
    import keras

    city = keras.Input((), name="city", dtype="string")
    rooms = keras.Input((), name="rooms", dtype="int32")
    area = keras.Input((2,), name="area")
    columns = keras.layers.Concatenate()(
        [
            keras.layers.Embedding(len(CITIES) + 1, 4)(
                keras.layers.StringLookup(vocabulary=list(CITIES))(city)
            ),
            keras.layers.Embedding(8, 4)(rooms),
            area,
        ]
    )
    hidden = keras.layers.Dense(16, activation="relu")(columns)
    outputs = {
        "price": keras.layers.Dense(1, name="price")(hidden),
        "sold": keras.layers.Dense(1, activation="sigmoid", name="sold")(hidden),
    }
    model = keras.Model({"city": city, "rooms": rooms, "area": area}, outputs)
    model.compile(
        keras.optimizers.Adam(0.02),
        loss={"price": "mse", "sold": "binary_crossentropy"},
        loss_weights={"price": 1.0, "sold": 0.5},
        metrics={"price": ["mae"], "sold": ["accuracy"]},
    )
    return model
