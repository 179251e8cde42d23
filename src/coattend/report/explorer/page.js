// The page: actions of the user change `state`, and one loop updates everything that is shown.

const contents = JSON.parse(document.getElementById("contents").textContent);
const side = contents.side;
const find = (id) => document.getElementById(id);

const state = {
  digit: null, // picked from the gallery
  strokes: [], // or drawn
  pixels: new Float64Array(side * side), // of either, unmoved
  pose: { angle: 0, mirrored: false },
  stale: { picture: true, pose: true },
  isAtRest: false,
};
const panels = [];
let wake = () => {};

function changed(...what) {
  for (const part of what) state.stale[part] = true;
  state.isAtRest = false;
  wake();
}

const shownPixels = () => posed(state.pixels, side, state.pose);
const isBlank = () => !state.pixels.some((value) => value > 0);

/** Show the answers beside the slider, for small windows in which the panels are out of sight. */
function showAnswers() {
  find("answers").replaceChildren(
    ...panels.map((panel, n) => {
      const answer = document.createElement("span");
      answer.dataset.network = n % 4;
      answer.textContent = panel.find(".answer strong").textContent;
      return answer;
    }),
  );
}

const isSpinning = () => find("spin").getAttribute("aria-pressed") === "true";
const nextFrame = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

async function keepUpToDate(circle) {
  for (;;) {
    const { stale } = state;
    if (stale.picture || stale.pose) {
      state.stale = { picture: false, pose: false };
      for (const panel of panels) await panel.run(stale.picture);
      for (const panel of panels) panel.show();
      showAnswers();
      circle.point(state.pose.angle);
      if (stale.picture) circle.restart(state.pixels, side, state.pose.mirrored, state.digit?.label ?? null);
    } else if (isSpinning()) {
      turnTo(state.pose.angle + 3);
    } else if (!circle.isComplete) {
      await circle.advance();
    } else {
      state.isAtRest = true;
      await new Promise((resolve) => (wake = resolve));
    }
    await nextFrame();
  }
}

async function start() {
  listenToTheControls();
  fillTheGallery();
  if (contents.gallery.length) setPicture(find("gallery").children[contents.first].digit, []);
  else showPicture();
  const ort = await startEngine();
  for (const [n, description] of contents.networks.entries()) {
    panels.push(new Panel(await Network.load(ort, description), n));
  }
  find("networks").replaceChildren(...panels.map((panel) => panel.element));
  find("networks").setAttribute("aria-busy", "false");
  const widest = Math.max(...contents.networks.flatMap((network) => network.layers.map((layer) => layer.channels)));
  for (let k = 0; k < widest; k++) find("channel").add(new Option(String(k + 1), String(k)));
  await keepUpToDate(
    new Circle(
      panels.map((panel) => panel.network),
      find("circle"),
      find("circle-caption"),
    ),
  );
}

// The numbers that the page shows, for the console.
window.explorer = {
  isAtRest: () => state.isAtRest,
  pixels: () => Array.from(shownPixels()),
  networks: () =>
    panels.map(({ network, outputs, back, unmoved }) => ({
      title: network.title,
      logits: Array.from(outputs.logits),
      probabilities: outputs.probabilities[0],
      difference: largestDifference(back, unmoved),
    })),
};

start().catch((error) => {
  find("problem").hidden = false;
  find("problem").textContent = `The networks stopped: ${error.message}. A current browser, reloaded, should run them.`;
  throw error;
});
