/* Browsers refuse workers to pages that are opened as files. There the search runs in a hidden frame instead: the same
   interface, messages by postMessage. On a server nothing is changed. */
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "Search";
      document.body.append(frame);
      const inside = frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source === inside) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      const sender = "postMessage = (data) => parent.dispatchEvent(new MessageEvent('message', { data, source: window }))";
      this.ready = new Promise((loaded) => (frame.onload = loaded));
      inside.document.open();
      inside.document.write(`<script>${sender}</script><script src="${address}"></script>`);
      inside.document.close();
      this.inside = inside;
      this.deliver = (data) => inside.dispatchEvent(new MessageEvent("message", { data }));
    }
    postMessage(data) {
      this.ready.then(() => this.deliver(data));
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
