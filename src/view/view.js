// Live updates and keys. All pages can be read without it.
"use strict";

const follows = document.currentScript.dataset.follows;

const parts = (main) => [...main.children].map((part) => part.outerHTML);

// The parts as the server sent them: what a reader has opened does not count.
let sent = parts(document.querySelector("main"));

// The parts of the page that have changed replace those that are shown.
async function renew() {
  const answer = await fetch(location.href);
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const [shown, now] = [document.querySelector("main"), page.querySelector("main")];
  const news = parts(now);
  if (news.length !== sent.length) {
    shown.replaceWith(now);
  } else {
    const old = [...shown.children];
    [...now.children].forEach((part, place) => {
      if (news[place] !== sent[place]) old[place].replaceWith(part);
    });
  }
  sent = news;
}

// While something is typed or marked, the page stays as it is.
const isBusy = () =>
  document.activeElement?.matches("input, textarea, select") || String(getSelection()) !== "";

function follow() {
  let isStale = false;
  let isWaiting = false;
  const look = async () => {
    if (!isStale || isWaiting) return;
    isWaiting = true;
    const begun = performance.now();
    if (!isBusy()) {
      isStale = false;
      // The server may have ended: the events say when it is back.
      await renew().catch(() => {});
    }
    // A page that takes long is asked for less often.
    setTimeout(() => {
      isWaiting = false;
      look();
    }, 1000 + performance.now() - begun);
  };
  new EventSource(follows).onmessage = () => {
    isStale = true;
    look();
  };
}

const isStill = /\/(search|compare|sql)$/.test(location.pathname);
if (follows && !isStill) addEventListener("load", follow);

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  const click = (selector) => document.querySelector(selector)?.click();
  if (event.key === "n" || event.key === "ArrowRight") click("a[rel=next]");
  if (event.key === "p" || event.key === "ArrowLeft") click("a[rel=prev]");
  if (event.key === "u") click("h1 a");
  if (event.key === "/") {
    event.preventDefault();
    document.querySelector("input[type=search]")?.focus();
  }
});
