// The page of models needs a script only for the frame around it, and for times of the reader's zone.

import { followTheme, openLinksInTabs } from "./frame.js";
import { moment, timeZone } from "./words.js";

followTheme(() => {});
openLinksInTabs("a[target]");
for (const time of document.querySelectorAll("time"))
  Object.assign(time, { textContent: moment(Date.parse(time.dateTime) / 1000), title: timeZone });
