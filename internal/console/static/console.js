// Updates the figures of a page while it is visible. The server sends HTML that
// it has escaped; without this script the page is complete and static.
(() => {
  'use strict';
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
