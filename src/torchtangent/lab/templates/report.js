// Nothing here is needed to read the page: claims can be filtered, and the contents show where the reader is.
const form = document.querySelector("#filter");
const studies = [...document.querySelectorAll("#ledger details")];
const claims = studies.flatMap((study) =>
  [...study.querySelectorAll("tr.claim")].map((row) => ({
    row,
    verdict: row.firstElementChild.dataset.verdict,
    text: `${study.firstElementChild.textContent} ${row.textContent}`.toLowerCase(),
  })),
);

function filter() {
  const words = form.text.value.toLowerCase().split(/\s+/);
  const wanted = form.verdict.value;
  for (const { row, verdict, text } of claims) {
    row.hidden = (wanted && verdict !== wanted) || !words.every((word) => text.includes(word));
  }
  const shown = claims.filter(({ row }) => !row.hidden).length;
  for (const study of studies) {
    study.hidden = !study.querySelector("tr.claim:not([hidden])");
    study.open = shown < claims.length;
  }
  form.count.value = `${shown} of ${claims.length} claims`;
}

form.hidden = false;
form.addEventListener("input", filter);
form.addEventListener("submit", (event) => event.preventDefault());
for (const link of document.querySelectorAll("a[data-verdict]")) {
  link.addEventListener("click", () => {
    form.verdict.value = link.dataset.verdict;
    filter();
  });
}
filter();

const nav = document.querySelector("#contents");
const beside = matchMedia("(min-width: 75rem)");

function follow(link) {
  nav.querySelector("[aria-current]")?.removeAttribute("aria-current");
  link.setAttribute("aria-current", "true");
  link.closest("details")?.setAttribute("open", "");
  const above = link.offsetTop - nav.scrollTop;
  if (above < 0 || above > nav.clientHeight - 80) nav.scrollTop = link.offsetTop - nav.clientHeight / 3;
}

const reader = new IntersectionObserver(
  (seen) => {
    const here = seen.find((one) => one.isIntersecting);
    if (here && beside.matches) follow(nav.querySelector(`a[href="#${CSS.escape(here.target.id)}"]`));
  },
  { rootMargin: "0px 0px -85% 0px" },
);
for (const place of document.querySelectorAll("header, article.entry, #ledger, #provenance")) reader.observe(place);

function unfold() {
  const place = document.getElementById(location.hash.slice(1));
  if (place?.matches("details")) place.open = true;
}

addEventListener("hashchange", unfold);
unfold();
