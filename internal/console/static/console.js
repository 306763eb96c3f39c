// Keeps a page current while it is visible: its figures, and how long ago things
// were. The server sends HTML that it has escaped; without this script the page is
// complete and static.
(() => {
  'use strict';

  // Relative times, as the server writes them.
  const units = [[60, 1, 's'], [3600, 60, 'min'], [172800, 3600, 'h'], [60480000, 86400, 'days']];
  const roughly = (seconds) => {
    for (const [upto, size, name] of units) {
      if (seconds < upto) {
        const n = Math.floor(seconds / size);
        return n > 0 ? `${n} ${name}` : '';
      }
    }
    return `${Math.floor(seconds / (365 * 86400))} years`;
  };
  const skew = { ms: 0 }; // of this computer's clock, by a time that the server has just written
  const relative = (moment) => {
    const seconds = (Date.now() - skew.ms - moment) / 1000;
    const text = roughly(Math.abs(seconds));
    if (!text) {
      return 'just now';
    }
    return seconds < 0 ? `in ${text}` : `${text} ago`;
  };
  const ages = () => {
    document.querySelectorAll('time[datetime]').forEach((e) => {
      const moment = Date.parse(e.dateTime);
      if (!Number.isNaN(moment)) {
        const text = relative(moment);
        if (e.textContent !== text) {
          e.textContent = text;
        }
      }
    });
  };
  const loaded = Date.parse(document.body.dataset.now);
  if (!Number.isNaN(loaded)) {
    skew.ms = Date.now() - loaded;
    setInterval(() => { if (!document.hidden) { ages(); } }, 5000);
  }

  // Chooses all rows of a page, and says how many are chosen.
  document.querySelectorAll('form.chosen').forEach((form) => {
    const rows = [...form.querySelectorAll('input[name=letter]')];
    const all = form.querySelector('.choose-all');
    const some = form.querySelector('input[name=which][value=chosen]');
    if (!all || !some) {
      return;
    }
    const count = () => {
      const n = rows.filter((row) => row.checked).length;
      all.checked = n === rows.length;
      all.indeterminate = n > 0 && n < rows.length;
      form.querySelectorAll('[data-count]').forEach((e) => { e.textContent = n > 0 ? `: ${n}` : ''; });
    };
    all.hidden = false;
    form.addEventListener('change', (event) => {
      if (event.target === all) {
        rows.forEach((row) => { row.checked = all.checked; });
      }
      if (event.target === all || event.target.name === 'letter') {
        some.checked = true;
      }
      count();
    });
    count();
  });

  // The values of a chart under the pointer.
  const shown = {
    rate: (v) => (v === 0 || v >= 100 ? `${Math.round(v)}/s` : `${v.toFixed(1)}/s`),
    count: (v) => String(Math.round(v)),
    seconds: (v) => (v === 0 ? '0' : v < 0.001 ? `${Math.round(v * 1e6)} µs` : v < 1 ? `${Number((v * 1000).toPrecision(3))} ms` : `${v.toFixed(1)} s`),
  };
  const samples = 300;
  let pointer = null; // the chart under the pointer, by its place on the page, and where in it
  const point = () => {
    document.querySelectorAll('.chart').forEach((chart, place) => {
      const tip = chart.querySelector('.tip');
      const cursor = chart.querySelector('.cursor');
      const on = pointer && pointer.place === place;
      tip.hidden = cursor.hidden = !on;
      if (!on) {
        return;
      }
      const back = Math.min(samples - 1, Math.max(0, Math.round((1 - pointer.at) * (samples - 1)))); // seconds before now
      const names = chart.dataset.names ? chart.dataset.names.split(',') : [];
      const texts = chart.dataset.values.split(';').map((list, i) => {
        const values = list.split(',');
        const value = values[values.length - 1 - back];
        const text = value ? shown[chart.dataset.unit](Number(value)) : '–';
        return names[i] ? `${names[i]} ${text}` : text;
      });
      cursor.style.left = `${(1 - back / (samples - 1)) * 100}%`;
      tip.textContent = `${back === 0 ? 'now' : `${roughly(back)} ago`}: ${texts.join(', ')}`;
    });
  };
  document.addEventListener('pointermove', (event) => {
    const plot = event.target instanceof Element ? event.target.closest('.area-of') : null;
    const chart = plot && plot.closest('.chart');
    if (!chart) {
      if (pointer) {
        pointer = null;
        point();
      }
      return;
    }
    const box = plot.getBoundingClientRect();
    pointer = { place: [...document.querySelectorAll('.chart')].indexOf(chart), at: (event.clientX - box.left) / box.width };
    point();
  });

  const region = document.querySelector('[data-live]');
  const state = document.getElementById('live-state');
  const toggle = document.getElementById('live-toggle');
  if (!region || !state || !toggle || !window.EventSource) {
    return;
  }
  let source = null;
  let wanted = true;
  let held = false; // a button is pressed: it must not be replaced under the finger
  let waiting = null;

  const say = (text, on) => {
    if (state.textContent !== text) {
      state.textContent = text;
    }
    state.classList.toggle('on', on);
  };

  const show = (html) => {
    if (held) {
      waiting = html;
      return;
    }
    const focused = region.contains(document.activeElement) ? document.activeElement : null;
    const id = focused && focused.id;
    const place = focused ? [...region.querySelectorAll('a, button, summary, [tabindex]')].indexOf(focused) : -1;
    const scrolled = [...region.querySelectorAll('.scroll, pre')].map((e) => [e.scrollLeft, e.scrollTop]);
    region.innerHTML = html;
    point();
    region.querySelectorAll('.scroll, pre').forEach((e, i) => {
      if (scrolled[i]) {
        [e.scrollLeft, e.scrollTop] = scrolled[i];
      }
    });
    if (focused) {
      const next = id ? document.getElementById(id) : region.querySelectorAll('a, button, summary, [tabindex]')[place];
      if (next) {
        next.focus({ preventScroll: true });
      }
    }
  };

  const release = () => {
    setTimeout(() => {
      held = false;
      if (waiting !== null) {
        const html = waiting;
        waiting = null;
        show(html);
      }
    }, 0);
  };
  region.addEventListener('pointerdown', () => { held = true; });
  window.addEventListener('pointerup', release);
  window.addEventListener('pointercancel', release);

  const stop = () => {
    if (source) {
      source.close();
      source = null;
    }
  };
  const start = () => {
    stop();
    source = new EventSource(region.dataset.live);
    source.addEventListener('page', (event) => {
      say('Live', true);
      show(event.data);
    });
    source.addEventListener('end', () => {
      stop();
      wanted = false;
      toggle.hidden = true;
      say('The session has ended: reload the page', false);
    });
    source.addEventListener('error', () => { say('Not connected, trying again', false); });
  };
  const apply = () => {
    if (wanted && !document.hidden) {
      say('Connecting', false);
      start();
    } else {
      stop();
      say(wanted ? 'Live' : 'Stopped', false);
    }
  };
  toggle.hidden = false;
  toggle.addEventListener('click', () => {
    wanted = !wanted;
    toggle.textContent = wanted ? 'Stop updating' : 'Update';
    apply();
  });
  // A page in the background needs no updates.
  document.addEventListener('visibilitychange', apply);
  window.addEventListener('pagehide', stop);
  apply();
})();
