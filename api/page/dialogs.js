// Questions before something is changed, and what the server says about it. All of it works without a mouse.

import { button, el, field, set, speak, theirs } from "/page/dom.js";
import { newToken, Problem } from "/page/session.js";

/** What went wrong, and what to do about it. */
export function trouble(error) {
  const remedy = error instanceof Problem ? error.remedy : "";
  return el("div", { class: "notice bad", role: "alert" }, el("strong", {}, theirs(error.message)), remedy ? el("p", {}, theirs(remedy)) : null);
}

/** Ask for a reason, then do it. Resolves to the answer, or to null if the user steps back. */
export function ask({ title, text, action, danger = false, required = true, act }) {
  const reason = el("textarea", { rows: "2", maxlength: "500", required });
  const problem = el("div");
  const go = el("button", { type: "submit", class: danger ? "danger" : "primary" }, action);
  const token = newToken(); // the same for every try: what was done once is not done twice
  return new Promise((resolve) => {
    const leave = (value) => {
      dialog.close();
      dialog.remove();
      resolve(value);
    };
    const submit = async (event) => {
      event.preventDefault();
      go.disabled = true;
      set(problem);
      try {
        const answer = await act(reason.value.trim(), token);
        leave(answer ?? true);
      } catch (error) {
        set(problem, trouble(error));
        go.disabled = false;
      }
    };
    const id = "dialog-title";
    const dialog = el(
      "dialog",
      { "aria-labelledby": id, on: { cancel: (event) => { event.preventDefault(); leave(null); } } },
      el("form", { on: { submit } },
        el("h2", { id }, title),
        el("p", {}, text),
        field("Reason", reason, "Stored with the change and in the audit log."),
        problem,
        el("div", { class: "buttons" }, go, button("Back", () => leave(null))),
      ),
    );
    document.body.append(dialog);
    dialog.showModal();
    reason.focus();
  });
}

/** A short message that goes away by itself; read aloud, too. */
export function toast(text) {
  speak(text);
  const node = el("div", { class: "toast", "aria-hidden": "true" }, text);
  document.body.append(node);
  setTimeout(() => node.remove(), 6000);
}
