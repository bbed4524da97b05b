'use strict';
// The script of the page: pan and zoom, highlighting, search, details, views and time.
// Every text comes from outside and is set as text, never as markup.
(() => {
  const $ = (id) => document.getElementById(id);
  const stage = $('stage'), panel = $('panel'), search = $('search'), found = $('found');
  const slider = $('slider'), notice = $('notice');
  const MISSING = 1, DERIVED = 2, TOUCHED = 4;
  let model, svg, boxes, lines, members, needs, needed, whole, view;
  let chosen = null, hovered = null, request = null, loads = 0, pointer = null, resting = null;

  // The model: values are [key, label, descriptor, state, marks, box].
  const keyOf = (v) => model.values[v][0];
  const labelOf = (v) => model.values[v][1] || model.values[v][0];
  const stateOf = (v) => model.values[v][4] & MISSING ? 'does not exist' : model.states[model.values[v][3]].toLowerCase();
  const about = (v) => (model.values[v][2] ? model.values[v][2] + ', ' : '') + stateOf(v);
  const boxOf = (v) => model.values[v][5];

  function make(name, props, ...content) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(props || {})) {
      if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
      else if (value !== undefined && value !== null) element.setAttribute(key, value);
    }
    element.append(...content.flat().filter((one) => one !== null && one !== undefined));
    return element;
  }

  // Reads the model and the picture after the page or a new view has been loaded.
  function start(keep) {
    model = JSON.parse($('model').textContent);
    svg = $('picture');
    boxes = [...svg.querySelectorAll('[data-box]')].sort((a, b) => a.dataset.box - b.dataset.box);
    lines = [];
    svg.querySelectorAll('[data-line]').forEach((line) => { lines[line.dataset.line] = line; });
    members = boxes.map(() => []);
    needs = model.values.map(() => []);
    needed = model.values.map(() => []);
    model.values.forEach((value, v) => { if (value[5] !== null) members[value[5]].push(v); });
    model.arrows.forEach(([from, to, kind]) => {
      needs[from].push([to, kind]);
      needed[to].push([from, kind]);
    });
    boxes.forEach((box, b) => { box.tabIndex = b === 0 ? 0 : -1; });
    whole = svg.getAttribute('viewBox').split(' ').map(Number);
    if (!keep || !view) fit();
    show();
    showTime();
    if (chosen !== null && !model.values.some((value) => value[0] === chosen)) close();
    mark();
    if (chosen !== null) details(chosen);
    loads += 1;
    document.body.dataset.loads = loads;
  }

  // Pan and zoom.
  function show() { svg.setAttribute('viewBox', view.join(' ')); }
  function scale() {
    const box = svg.getBoundingClientRect();
    return Math.max(view[2] / box.width, view[3] / box.height) || 1;
  }
  function fit() {
    const margin = 12;
    view = [-margin, -margin, whole[2] + 2 * margin, whole[3] + 2 * margin];
    const least = 1 / 1.35, now = scale();
    if (now < least) grow(least / now);
  }
  function grow(factor) {
    const middle = [view[0] + view[2] / 2, view[1] + view[3] / 2];
    view = [middle[0] - view[2] * factor / 2, middle[1] - view[3] * factor / 2, view[2] * factor, view[3] * factor];
  }
  function place(x, y) {
    const box = svg.getBoundingClientRect(), k = scale();
    return [
      view[0] + view[2] / 2 + (x - box.left - box.width / 2) * k,
      view[1] + view[3] / 2 + (y - box.top - box.height / 2) * k,
    ];
  }
  function zoom(at, factor) {
    factor = Math.min(Math.max(factor, 60 / view[2]), whole[2] * 8 / view[2]);
    view = [at[0] - (at[0] - view[0]) * factor, at[1] - (at[1] - view[1]) * factor, view[2] * factor, view[3] * factor];
    show();
  }
  function pan(x, y) { view[0] += x; view[1] += y; show(); }
  const middle = () => [view[0] + view[2] / 2, view[1] + view[3] / 2];
  const apart = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]) || 1;
  function frame(b) {
    const face = boxes[b].querySelector('.face');
    return ['x', 'y', 'width', 'height'].map((name) => Number(face.getAttribute(name)));
  }
  // Moves the view so that a box is visible and its text readable.
  function reveal(b) {
    const [x, y, width, height] = frame(b), k = scale(), screen = svg.getBoundingClientRect();
    const at = [x + width / 2, y + height / 2];
    const inside = Math.abs(at[0] - middle()[0]) < screen.width * k / 2 - width / 2
      && Math.abs(at[1] - middle()[1]) < screen.height * k / 2 - height;
    if (inside && k < 1.7) return;
    view[0] = at[0] - view[2] / 2;
    view[1] = at[1] - view[3] / 2;
    if (k > 1.7) grow(1.1 / k);
    show();
  }

  const pointers = new Map();
  let dragged = false;
  stage.addEventListener('wheel', (event) => {
    event.preventDefault();
    zoom(place(event.clientX, event.clientY), Math.pow(1.0015, event.deltaY * (event.deltaMode ? 33 : 1)));
  }, { passive: false });
  stage.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    dragged = false;
  });
  stage.addEventListener('pointermove', (event) => {
    const was = pointers.get(event.pointerId), now = [event.clientX, event.clientY];
    if (!was) return;
    if (!event.buttons) { pointers.delete(event.pointerId); return; }
    if (!dragged) {
      if (apart(was, now) < 4) return;
      dragged = true;
      stage.setPointerCapture(event.pointerId);
    }
    const other = [...pointers].find(([id]) => id !== event.pointerId);
    if (other) {
      const still = other[1];
      zoom(place((still[0] + now[0]) / 2, (still[1] + now[1]) / 2), apart(was, still) / apart(now, still));
    } else {
      pan((was[0] - now[0]) * scale(), (was[1] - now[1]) * scale());
    }
    pointers.set(event.pointerId, now);
  });
  for (const name of ['pointerup', 'pointercancel']) {
    stage.addEventListener(name, (event) => pointers.delete(event.pointerId));
  }
  stage.addEventListener('dragstart', (event) => event.preventDefault());
  stage.addEventListener('dblclick', (event) => {
    if (!event.target.closest('a')) { fit(); show(); }
  });
  $('closer').addEventListener('click', () => zoom(middle(), 0.8));
  $('farther').addEventListener('click', () => zoom(middle(), 1.25));
  $('whole').addEventListener('click', () => { fit(); show(); });
  $('again').addEventListener('click', () => load(address({}), true));
  window.addEventListener('resize', () => show());

  // Highlighting: everything that the values need and everything that needs them.
  function reach(from, next) {
    const seen = new Set(from), todo = [...from];
    while (todo.length) {
      for (const [other] of next[todo.pop()]) {
        if (!seen.has(other)) { seen.add(other); todo.push(other); }
      }
    }
    return seen;
  }
  function light(values, related) {
    const on = new Array(boxes.length).fill(false);
    const pairs = new Set();
    const put = (set) => set.forEach((v) => { if (boxOf(v) !== null) on[boxOf(v)] = true; });
    put(values);
    if (related) {
      const down = reach(values, needs), up = reach(values, needed);
      put(down);
      put(up);
      for (const set of [down, up]) {
        for (const v of set) {
          for (const [other, kind] of needs[v]) {
            if (set.has(other)) pairs.add(boxOf(v) + ' ' + boxOf(other) + ' ' + kind);
          }
        }
      }
    }
    svg.classList.add('focus');
    boxes.forEach((box, b) => box.classList.toggle('lit', on[b]));
    model.lines.forEach(([from, to, kind], l) => lines[l].classList.toggle('lit', pairs.has(from + ' ' + to + ' ' + kind)));
  }
  function matches(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const result = [];
    model.values.forEach((value, v) => {
      const all = (keyOf(v) + ' ' + labelOf(v) + ' ' + value[2] + ' ' + stateOf(v)).toLowerCase();
      if (words.every((word) => all.includes(word))) result.push(v);
    });
    return result;
  }
  // Highlights the box under the pointer, else the values found, else the chosen value.
  function mark() {
    boxes.forEach((box, b) => box.classList.toggle('chosen', chosen !== null && members[b].length === 1 && keyOf(members[b][0]) === chosen));
    const text = search.value.trim();
    if (hovered !== null) light(members[hovered], true);
    else if (text) light(matches(text), false);
    else if (chosen !== null) light(model.values.map((_, v) => v).filter((v) => keyOf(v) === chosen), true);
    else svg.classList.remove('focus');
  }
  const boxAt = (target) => { const box = target.closest && target.closest('[data-box]'); return box ? Number(box.dataset.box) : null; };
  // A box that a new view puts under a resting pointer is not pointed at.
  function point(event) {
    if (event.pointerType === 'touch') return;
    const at = event.clientX + ' ' + event.clientY;
    if (at === resting) return;
    [pointer, resting] = [at, null];
    const box = boxAt(event.target);
    if (box !== hovered) { hovered = box; mark(); }
  }
  stage.addEventListener('pointerover', point);
  stage.addEventListener('pointermove', point);
  stage.addEventListener('pointerleave', () => { hovered = null; mark(); });

  // Views are addresses; a new one replaces picture, legend and model in place.
  function address(change) {
    const want = { txn: model.txn, only: model.only, open: model.open, ...change };
    const query = new URLSearchParams();
    if (want.txn !== null) query.set('txn', want.txn);
    if (want.only !== null) query.set('only', want.only);
    want.open.forEach((key) => query.append('open', key));
    return 'graph' + (query.size ? '?' + query : '');
  }
  async function load(url, keep, remember) {
    if (request) request.abort();
    const mine = request = new AbortController();
    try {
      const response = await fetch(url, { headers: { Accept: 'text/html' }, signal: mine.signal });
      const text = await response.text();
      if (mine !== request) return;
      if (!response.ok) throw new Error(text.trim() || response.statusText);
      const page = new DOMParser().parseFromString(text, 'text/html');
      hovered = null;
      resting = pointer;
      for (const id of ['title', 'legend', 'picture', 'hint', 'foot', 'model']) {
        $(id).replaceWith(document.adoptNode(page.getElementById(id)));
      }
      document.title = page.title;
      notice.hidden = true;
      if (remember !== false) history.pushState(null, '', url);
      start(keep);
      $('spoken').textContent = page.title;
    } catch (error) {
      if (error.name === 'AbortError') return;
      notice.textContent = 'The picture could not be loaded: ' + error.message;
      notice.hidden = false;
      showTime();
    }
  }
  window.addEventListener('popstate', () => load(location.href, true, false));
  document.addEventListener('click', (event) => {
    const link = event.target.closest('a');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    if (dragged && stage.contains(link)) { event.preventDefault(); dragged = false; return; }
    const box = boxAt(link);
    if (box !== null && members[box].length === 1) {
      event.preventDefault();
      choose(members[box][0]);
    } else if (box !== null || link.classList.contains('close') || 'view' in link.dataset) {
      event.preventDefault();
      load(link.getAttribute('href'), false);
    }
  }, true);
  stage.addEventListener('click', (event) => {
    if (!dragged && boxAt(event.target) === null && chosen !== null && event.target.closest('svg')) close();
  });

  // Choosing a value shows its details; one inside a tile opens the tile first.
  async function choose(v) {
    const key = keyOf(v);
    if (boxOf(v) === null || members[boxOf(v)].length > 1) {
      const change = { open: [...model.open, key] };
      if (boxOf(v) === null) change.only = null;
      await load(address(change), false);
      v = model.values.findIndex((value) => value[0] === key);
      if (v < 0 || boxOf(v) === null || members[boxOf(v)].length > 1) return;
    }
    chosen = key;
    hovered = null;
    boxes.forEach((box) => { box.tabIndex = -1; });
    boxes[boxOf(v)].tabIndex = 0;
    boxes[boxOf(v)].focus({ preventScroll: true });
    details(key);
    mark();
    reveal(boxOf(v));
  }
  function close() {
    chosen = null;
    panel.hidden = true;
    mark();
  }

  // Details.
  function shown(value, depth) {
    if (value === null || value === undefined) return make('span', { class: 'key' }, 'none');
    if (typeof value !== 'object') return String(value);
    const entries = Object.entries(value), list = Array.isArray(value);
    if (!entries.length) return make('span', { class: 'key' }, 'empty');
    if (depth > 5) return JSON.stringify(value);
    const few = entries.slice(0, 200);
    const rest = entries.length > few.length ? '… and ' + (entries.length - few.length) + ' more' : null;
    if (list) return make('ol', {}, few.map(([, one]) => make('li', {}, shown(one, depth + 1))), rest ? make('li', {}, rest) : null);
    return make('dl', {}, few.flatMap(([name, one]) => {
      const nested = one !== null && typeof one === 'object' && Object.keys(one).length > 0;
      return [make('dt', {}, name), make('dd', nested ? { class: 'nested' } : {}, shown(one, depth + 1))];
    }), rest ? make('dt', {}, rest) : null);
  }
  function go(v) {
    return make('li', {}, make('button', { class: 'go', type: 'button', title: keyOf(v), onclick: () => choose(v) }, labelOf(v)), ' ', make('small', {}, about(v)));
  }
  function related(title, list) {
    if (!list.length) return [];
    const few = list.slice(0, 50);
    return [make('h3', {}, title + ' (' + list.length + ')'),
      make('ul', { class: 'plain' }, few.map(([v]) => go(v)), list.length > 50 ? make('li', {}, '… and ' + (list.length - 50) + ' more') : null)];
  }
  const time = (text) => String(text).replace('T', ' ').replace(/(\.\d{3})\d*/, '$1').replace('Z', '');
  async function fetched(path) {
    try {
      const response = await fetch(path, { headers: { Accept: 'application/json' } });
      return response.ok ? await response.json() : null;
    } catch (error) {
      return null;
    }
  }
  async function details(key) {
    const v = model.values.findIndex((value) => value[0] === key);
    const value = model.values[v], missing = Boolean(value[4] & MISSING), at = model;
    const of = (list, kind) => list.filter((one) => one[1] === kind);
    const body = make('div', {});
    panel.replaceChildren(
      make('header', {}, make('h2', {}, labelOf(v)), make('button', { type: 'button', onclick: close, title: 'Close (Esc)' }, 'Close')),
      make('p', { class: 'key' }, key),
      make('p', {}, make('b', {}, stateOf(v)), value[4] & DERIVED ? ', derived' : '', value[4] & TOUCHED ? ', changed by this transaction' : ''),
      body,
      ...related('Waits for', of(needs[v], 1)),
      ...related('Depends on', of(needs[v], 0)),
      ...related('Derived from', of(needs[v], 2)),
      ...related('Derives', of(needed[v], 2)),
      ...related('Needed by', needed[v].filter((one) => one[1] !== 2)),
      make('div', { id: 'past' }),
    );
    panel.hidden = false;
    if (missing) {
      body.append(make('p', {}, 'No such value exists; values that depend on it wait.'));
      panel.dataset.of = key;
      return;
    }
    const query = '?key=' + encodeURIComponent(key);
    const [past, now] = await Promise.all([fetched('key-timeline' + query), at.txn === null ? fetched('status' + query) : null]);
    if (chosen !== key || at !== model) return;
    const moment = Date.parse(at.at);
    const revisions = past || [];
    const current = at.txn === null ? revisions[revisions.length - 1]
      : revisions.find((one) => one.transaction === at.txn) || revisions.findLast((one) => Date.parse(one.since) <= moment);
    const error = (now && now.error) || (current && current.error);
    if (error) body.append(make('p', { class: 'error' }, error));
    if (now && now.uncertain) body.append(make('p', { class: 'error' }, 'The last operation was interrupted: the real state is not known.'));
    if (now && now.cycle && now.cycle.length) body.append(make('p', {}, 'Part of a dependency cycle of ' + now.cycle.length + ' values.'));
    const rows = [['Descriptor', value[2] || 'none']];
    if (current) rows.push(['Last operation', current.operation.toLowerCase()], ['Transaction', String(current.transaction)], ['Since', time(current.since)]);
    for (const [name, text] of Object.entries((now && now.labels) || {})) rows.push([name, text]);
    body.append(make('dl', {}, rows.flatMap(([name, text]) => [make('dt', {}, name), make('dd', {}, text)])));
    if (current) {
      body.append(make('h3', {}, 'Value'), make('div', { id: 'value' }, shown(current.value, 0)));
      const asked = current.requested;
      if (asked !== null && JSON.stringify(asked) !== JSON.stringify(current.value)) body.append(make('h3', {}, 'Wanted'), make('div', {}, shown(asked, 0)));
      if (current.metadata !== null) body.append(make('h3', {}, 'Metadata'), make('div', {}, shown(current.metadata, 0)));
    } else {
      body.append(make('p', {}, 'The history holds no revision of this value.'));
    }
    if (revisions.length) {
      $('past').replaceChildren(make('h3', {}, 'History (' + revisions.length + ')'), make('table', {}, revisions.slice(-50).reverse().map((one) =>
        make('tr', one === current ? { class: 'shown' } : {},
          make('td', {}, make('button', { class: 'go', type: 'button', title: 'Show the graph after this transaction', onclick: () => load(address({ txn: one.transaction }), true) }, String(one.transaction))),
          make('td', {}, time(one.since)), make('td', {}, one.operation.toLowerCase()), make('td', {}, one.state.toLowerCase())))));
    }
    panel.dataset.of = key;
  }

  // Search.
  let results = [], active = 0;
  function look() {
    const text = search.value.trim();
    results = text ? matches(text) : [];
    active = 0;
    found.hidden = !text;
    found.replaceChildren(...results.slice(0, 30).map((v, index) => make('li', {
      role: 'option', 'aria-selected': index === 0, onpointerdown: (event) => { event.preventDefault(); take(index); },
    }, labelOf(v), ' ', make('small', {}, about(v)))));
    const note = !results.length ? 'No value found' : results.length > 30 ? (results.length - 30) + ' more' : null;
    if (note) found.append(make('li', { role: 'presentation' }, make('small', {}, note)));
    hovered = null;
    mark();
  }
  function take(index) {
    const v = results[index];
    if (v === undefined) return;
    search.value = '';
    found.hidden = true;
    choose(v);
  }
  search.addEventListener('input', look);
  search.addEventListener('focus', () => { if (search.value.trim()) look(); });
  search.addEventListener('blur', () => { found.hidden = true; });
  search.addEventListener('keydown', (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const options = found.querySelectorAll('[role=option]');
    if (step && options.length) {
      active = (active + step + options.length) % options.length;
      options.forEach((one, index) => one.setAttribute('aria-selected', index === active));
      options[active].scrollIntoView({ block: 'nearest' });
    } else if (event.key === 'Enter') take(active);
    else if (event.key === 'Escape') { search.value = ''; found.hidden = true; mark(); search.blur(); }
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  // Time: the last place of the slider is now.
  function showTime() {
    const all = model.transactions, last = all.length;
    const at = model.txn === null ? last : all.findIndex((one) => one[0] === model.txn);
    slider.max = last;
    slider.value = at < 0 ? 0 : at;
    slider.disabled = last === 0;
    $('earlier').disabled = at <= 0;
    $('later').disabled = at >= last;
    say(at);
  }
  function say(at) {
    const one = model.transactions[at], many = (count, name) => count + ' ' + name + (count === 1 ? '' : 's');
    const text = !one ? 'Now' : ['Transaction ' + one[0], time(one[1]), many(one[4], 'operation'), one[5] ? many(one[5], 'error') : '', one[3]].filter(Boolean).join(' · ');
    $('moment').textContent = text;
    slider.setAttribute('aria-valuetext', text);
  }
  function travel(at) {
    const all = model.transactions;
    at = Math.min(Math.max(at, 0), all.length);
    slider.value = at;
    say(at);
    load(address({ txn: at === all.length ? null : all[at][0] }), true);
  }
  slider.addEventListener('input', () => travel(Number(slider.value)));
  $('earlier').addEventListener('click', () => travel(Number(slider.value) - 1));
  $('later').addEventListener('click', () => travel(Number(slider.value) + 1));

  // Keys.
  function neighbour(b, x, y) {
    const from = frame(b);
    let best = null, least = Infinity;
    boxes.forEach((_, other) => {
      if (other === b) return;
      const to = frame(other), dx = to[0] + to[2] / 2 - from[0] - from[2] / 2, dy = to[1] - from[1];
      const ahead = x ? dx * x : dy * y, aside = Math.abs(x ? dy : dx);
      if (ahead > 1 && ahead + 3 * aside < least) { least = ahead + 3 * aside; best = other; }
    });
    return best;
  }
  document.addEventListener('focusin', (event) => {
    const box = boxAt(event.target);
    if (box !== null && event.target.matches(':focus-visible')) { hovered = box; mark(); }
  });
  document.addEventListener('focusout', (event) => {
    if (boxAt(event.target) !== null && hovered === boxAt(event.target)) { hovered = null; mark(); }
  });
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches('input')) return;
    const b = boxAt(event.target), far = view[2] / 10;
    const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (arrow && b !== null) {
      const next = neighbour(b, ...arrow);
      if (next !== null) {
        boxes[b].tabIndex = -1;
        boxes[next].tabIndex = 0;
        boxes[next].focus({ preventScroll: true });
        reveal(next);
      }
    } else if (arrow && panel.contains(event.target)) return;
    else if (arrow) pan(arrow[0] * far, arrow[1] * far);
    else if (event.key === '+' || event.key === '=') zoom(middle(), 0.8);
    else if (event.key === '-') zoom(middle(), 1.25);
    else if (event.key === '0') { fit(); show(); }
    else if (event.key === '/') search.focus();
    else if (event.key === '[') travel(Number(slider.value) - 1);
    else if (event.key === ']') travel(Number(slider.value) + 1);
    else if (event.key === 'n') load(address({ only: model.only === 'unwell' ? null : 'unwell', open: [] }), false);
    else if (event.key === 'r') load(address({}), true);
    else if (event.key === 'Escape') close();
    else return;
    event.preventDefault();
  });

  start(false);
})();
