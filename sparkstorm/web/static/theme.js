// Before the first paint, so that a dark page does not flash.
document.documentElement.dataset.theme = localStorage.getItem("theme") || "auto";
