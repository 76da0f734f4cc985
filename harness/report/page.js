// Only comfort: the page says everything without it.
for (const box of document.querySelectorAll('.filter fieldset')) {
  const boxes = [...box.querySelectorAll('input')];
  const button = (text, on) => {
    const b = document.createElement('button');
    b.type = 'button';
    b.textContent = text;
    b.onclick = () => boxes.forEach(i => i.checked = on);
    box.append(b);
  };
  button('all', true);
  button('none', false);
  // Alone: a double click on one op.
  for (const label of box.querySelectorAll('label'))
    label.ondblclick = () => boxes.forEach(i => i.checked = label.contains(i));
}
for (const figure of document.querySelectorAll('figure')) {
  const say = document.createElement('p');
  say.className = 'say';
  say.textContent = 'Point at a mark for its case; a click leads to its row.';
  figure.append(say);
  const show = event => {
    const link = event.target.closest('a');
    if (!link) return;
    say.textContent = link.querySelector('title').textContent;
    document.querySelector('tr.hi')?.classList.remove('hi');
    document.getElementById(link.getAttribute('href').slice(1))?.classList.add('hi');
  };
  figure.addEventListener('pointerover', show);
  figure.addEventListener('focusin', show);
}
