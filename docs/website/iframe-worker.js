// The search is a worker, and browsers start no worker for pages opened from a folder. There, a
// hidden frame runs the worker's script. (The script looks for the name IFrameWorker.)
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inside = frame.contentWindow;
      const answer = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.postMessage = answer;
      this.ready = new Promise((resolve) => {
        const script = inside.document.createElement("script");
        script.onload = resolve;
        script.src = address;
        inside.document.body.appendChild(script);
      });
      this.inside = inside;
      this.frame = frame;
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
