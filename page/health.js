// Checks every two seconds whether the server works, as long as the page is visible.

import { health } from "./api.js";
import { find } from "./dom.js";

const PAUSE = 2000; // milliseconds
const LITTLE = 500; // milliseconds between checks while the server does not work

// Call `recovered` when the server works again.
export function watchHealth(recovered) {
  let wrong = "";
  async function look() {
    if (document.visibilityState === "visible") {
      const was = wrong;
      wrong = await health();
      say(wrong);
      if (was && !wrong) recovered();
    }
    setTimeout(look, wrong ? LITTLE : PAUSE);
  }
  look();
}

function say(wrong) {
  const state = wrong ? "wrong" : "well";
  if (find("health").dataset.state !== state) {
    find("health").dataset.state = state;
    find("health-text").textContent = wrong ? "Not ready" : "Ready";
    find("banner").hidden = !wrong;
  }
  if (find("banner").textContent !== wrong) find("banner").textContent = wrong;
}
