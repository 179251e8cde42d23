// ONNX Runtime in this page: module, WebAssembly and networks are unpacked from the page itself.

async function unpacked(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

async function startEngine() {
  const [code, binary] = await Promise.all([unpacked("runtime-module"), unpacked("runtime-binary")]);
  const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  const ort = await import(address);
  URL.revokeObjectURL(address);
  ort.env.wasm.wasmBinary = binary;
  ort.env.wasm.numThreads = 1; // threads need HTTP headers, which a file does not have
  ort.env.logLevel = "error";
  return ort;
}

class Network {
  constructor(ort, description, session) {
    Object.assign(this, description);
    this.ort = ort;
    this.session = session;
  }

  static async load(ort, description) {
    const session = await ort.InferenceSession.create(new Uint8Array(await unpacked(description.id)));
    return new Network(ort, description, session);
  }

  /** Run pictures of pixels from 0 to 255; returns their probabilities, and further outputs by name. */
  async run(pictures, side, names = []) {
    const input = new Float32Array(pictures.length * side * side);
    pictures.forEach((pixels, n) => input.set(pixels, n * side * side));
    const tensor = new this.ort.Tensor("float32", input, [pictures.length, 1, side, side]);
    const outputs = await this.session.run({ [this.input]: tensor }, [this.logits, ...names]);
    const logits = outputs[this.logits].data;
    const classes = this.classes.length;
    const probabilities = pictures.map((_, n) => softmax(logits.slice(n * classes, (n + 1) * classes)));
    return { logits, probabilities, maps: Object.fromEntries(names.map((name) => [name, outputs[name]])) };
  }
}

function softmax(logits) {
  const largest = Math.max(...logits);
  const powers = Array.from(logits, (value) => Math.exp(value - largest));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((value) => value / sum);
}
