// A list of the versions of this site, if it is one of several: docs/build.py writes versions.json beside their folders.
const root = new URL(document.documentElement.dataset.content_root || "./", location.href);
fetch(new URL("../versions.json", root))
  .then((answer) => (answer.ok ? answer.json() : []))
  .then((versions) => {
    const here = root.pathname.split("/").at(-2);
    if (!versions.includes(here)) return;
    const list = document.createElement("select");
    list.setAttribute("aria-label", "version");
    for (const name of versions) list.add(new Option(name, name, false, name === here));
    list.onchange = () => location.assign(new URL(`../${list.value}/index.html`, root));
    document.querySelector(".sidebar-brand, body").after(list);
  })
  .catch(() => {}); // a page that is read from a file
