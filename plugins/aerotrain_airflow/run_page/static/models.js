// The page of models needs a script only for the frame around it.

import { followTheme, openLinksInTabs } from "./frame.js";

followTheme(() => {});
openLinksInTabs("a[target]");
