// Pan by dragging, zoom by wheel, pinch or + and -, the whole picture by 0 or a double click.
(function () {
  var script = document.currentScript;
  var svg = (script && script.ownerSVGElement) || document.documentElement;
  var whole = svg.getAttribute('viewBox').split(' ').map(Number);
  var view = whole.slice();
  var pointers = {};
  var dragged = false;
  function show() {
    svg.setAttribute('viewBox', view.join(' '));
  }
  function scale() {
    var box = svg.getBoundingClientRect();
    return Math.max(view[2] / box.width, view[3] / box.height);
  }
  function place(x, y) {
    var box = svg.getBoundingClientRect(), k = scale();
    return [
      view[0] + view[2] / 2 + (x - box.left - box.width / 2) * k,
      view[1] + view[3] / 2 + (y - box.top - box.height / 2) * k
    ];
  }
  function zoom(at, factor) {
    factor = Math.min(Math.max(factor, 60 / view[2]), whole[2] * 8 / view[2]);
    view = [
      at[0] - (at[0] - view[0]) * factor, at[1] - (at[1] - view[1]) * factor,
      view[2] * factor, view[3] * factor
    ];
    show();
  }
  function pan(x, y) {
    view[0] += x;
    view[1] += y;
    show();
  }
  function middle() {
    return [view[0] + view[2] / 2, view[1] + view[3] / 2];
  }
  function apart(a, b) {
    return Math.hypot(a[0] - b[0], a[1] - b[1]) || 1;
  }
  svg.addEventListener('wheel', function (event) {
    event.preventDefault();
    var lines = event.deltaMode ? 33 : 1;
    zoom(place(event.clientX, event.clientY), Math.pow(1.0015, event.deltaY * lines));
  }, { passive: false });
  svg.addEventListener('pointerdown', function (event) {
    if (event.button === 0) {
      pointers[event.pointerId] = [event.clientX, event.clientY];
      dragged = false;
    }
  });
  svg.addEventListener('pointermove', function (event) {
    var was = pointers[event.pointerId], now = [event.clientX, event.clientY];
    if (!was) return;
    if (!event.buttons) {
      delete pointers[event.pointerId];
      return;
    }
    if (!dragged) {
      if (apart(was, now) < 4) return;
      dragged = true;
      svg.setPointerCapture(event.pointerId);
    }
    var other = Object.keys(pointers).filter(function (id) {
      return id !== String(event.pointerId);
    })[0];
    if (other) {
      var still = pointers[other];
      zoom(place((still[0] + now[0]) / 2, (still[1] + now[1]) / 2), apart(was, still) / apart(now, still));
    } else {
      pan((was[0] - now[0]) * scale(), (was[1] - now[1]) * scale());
    }
    pointers[event.pointerId] = now;
  });
  ['pointerup', 'pointercancel'].forEach(function (name) {
    svg.addEventListener(name, function (event) {
      delete pointers[event.pointerId];
    });
  });
  svg.addEventListener('click', function (event) {
    if (dragged) {
      event.preventDefault();
      event.stopPropagation();
      dragged = false;
    }
  }, true);
  svg.addEventListener('dragstart', function (event) {
    event.preventDefault();
  });
  svg.addEventListener('dblclick', function () {
    view = whole.slice();
    show();
  });
  window.addEventListener('keydown', function (event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    var far = view[2] / 10;
    switch (event.key) {
      case '+': case '=': zoom(middle(), 0.8); break;
      case '-': zoom(middle(), 1.25); break;
      case '0': view = whole.slice(); show(); break;
      case 'ArrowLeft': pan(-far, 0); break;
      case 'ArrowRight': pan(far, 0); break;
      case 'ArrowUp': pan(0, -far); break;
      case 'ArrowDown': pan(0, far); break;
      default: return;
    }
    event.preventDefault();
  });
})();
