// The picture on the pad, and everything that changes it or its pose.

function showPicture() {
  const pixels = shownPixels();
  const grey = (value) => [value, value, value];
  for (const id of ["pad", "thumbnail"]) paint(find(id), pixels, side, grey);
  const { angle, mirrored } = state.pose;
  find("angle").value = angle;
  find("angle").setAttribute("aria-valuetext", `${angle} degrees counter-clockwise`);
  setText(find("angle-text"), `${angle}°`);
  find("mirror").setAttribute("aria-pressed", mirrored);
  find("undo").disabled = !state.strokes.length;
  find("centre").disabled = !state.strokes.length;
  for (const button of find("gallery").children) {
    button.setAttribute("aria-pressed", button.digit === state.digit);
  }
}

function turnTo(angle) {
  state.pose.angle = ((angle % 360) + 360) % 360;
  showPicture();
  changed("pose");
}

function setPicture(digit, strokes) {
  Object.assign(state, { digit, strokes, pixels: digit ? digit.pixels : drawn(strokes, side) });
  showPicture();
  changed("picture", "pose");
}

function listenToThePad(pad) {
  const point = (event) => {
    const box = pad.getBoundingClientRect();
    const shown = [((event.clientX - box.left) / box.width) * side, ((event.clientY - box.top) / box.height) * side];
    return unposedPoint(shown, side, state.pose);
  };
  pad.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    pad.setPointerCapture(event.pointerId);
    setPicture(null, [...state.strokes, [point(event)]]);
    event.preventDefault();
  });
  pad.addEventListener("pointermove", (event) => {
    if (!pad.hasPointerCapture(event.pointerId)) return;
    state.strokes.at(-1).push(point(event));
    setPicture(null, state.strokes);
  });
}

function listenToTheControls() {
  listenToThePad(find("pad"));
  find("clear").onclick = () => setPicture(null, []);
  find("undo").onclick = () => setPicture(null, state.strokes.slice(0, -1));
  find("centre").onclick = () => setPicture(null, centred(state.strokes, side));
  find("angle").oninput = () => {
    state.pose.angle = Number(find("angle").value);
    showPicture();
    changed("pose");
  };
  find("quarter-left").onclick = () => turnTo(state.pose.angle + 90);
  find("quarter-right").onclick = () => turnTo(state.pose.angle - 90);
  find("mirror").onclick = () => {
    state.pose.mirrored = !state.pose.mirrored;
    showPicture();
    changed("picture", "pose");
  };
  find("spin").onclick = () => {
    find("spin").setAttribute("aria-pressed", !isSpinning());
    changed();
  };
  find("back").onchange = find("channel").onchange = () => panels.forEach((panel) => panel.outputs && panel.showMaps());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => changed("pose"));
}

function fillTheGallery() {
  for (const { label, pixels } of contents.gallery) {
    const digit = { label, pixels: Float64Array.from(atob(pixels), (c) => c.charCodeAt(0)) };
    const button = document.createElement("button");
    button.type = "button";
    button.digit = digit;
    button.setAttribute("aria-label", `the digit ${contents.networks[0].classes[label]}`);
    const canvas = document.createElement("canvas");
    paint(canvas, digit.pixels, side, (value) => [value, value, value]);
    button.append(canvas);
    button.onclick = () => setPicture(digit, []);
    find("gallery").append(button);
  }
  find("gallery").hidden = !contents.gallery.length;
}
