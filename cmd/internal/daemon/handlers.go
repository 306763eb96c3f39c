package daemon

import (
	"io"
	"log/slog"
	"slices"
	"sync"

	"github.com/notifyd/notifyd/cmd/internal/config"
	"github.com/notifyd/notifyd/cmd/internal/destinations"
	"github.com/notifyd/notifyd/delivery"
)

// opener opens the handler of a destination for a purpose: "" to deliver events, or "alerts". The closer
// gives it back, once.
type opener func(purpose string, d config.Destination) (delivery.Handler, io.Closer, error)

// ownHandlers opens a handler at each call.
func ownHandlers(_ *config.Config, log *slog.Logger) opener {
	return func(_ string, d config.Destination) (delivery.Handler, io.Closer, error) {
		h, err := destinations.Open(d, log)
		if err != nil {
			return nil, nil, err
		}

		closer, ok := h.(io.Closer)
		if !ok {
			closer = closerFunc(func() error { return nil })
		}

		return h, closer, nil
	}
}

type closerFunc func() error

func (f closerFunc) Close() error { return f() }

// sharedHandlers are the handlers of destinations that several outboxes have: one for all of them, with
// its connections. The last one to give it back closes it. A destination whose settings a reload has changed
// has another one, which is not used before all have given the old one back.
type sharedHandlers struct {
	mu    sync.Mutex // guards slots
	slots map[handlerKey]*handlerSlot
}

type handlerKey struct{ purpose, name string }

// handlerSlot has the handlers of a destination: one, and another one while a reload replaces it.
type handlerSlot struct {
	mu  sync.Mutex // held also while a handler closes: its successor must not begin before that
	all []*sharedHandler
}

type sharedHandler struct {
	config  *config.Config // has the settings
	handler delivery.Handler
	closer  io.Closer
	users   int
}

func newSharedHandlers() *sharedHandlers {
	return &sharedHandlers{slots: make(map[handlerKey]*handlerSlot)}
}

func (s *sharedHandlers) slot(key handlerKey) *handlerSlot {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.slots[key] == nil {
		s.slots[key] = &handlerSlot{}
	}
	return s.slots[key]
}

// opener returns one that shares the handlers of destinations among its callers. A handler that keeps a
// position has the state of one outbox: it is opened for each.
func (s *sharedHandlers) opener(c *config.Config, log *slog.Logger) opener {
	own := ownHandlers(c, log)
	return func(purpose string, d config.Destination) (delivery.Handler, io.Closer, error) {
		slot := s.slot(handlerKey{purpose, d.Name})
		slot.mu.Lock()
		defer slot.mu.Unlock()

		i := slices.IndexFunc(slot.all, func(h *sharedHandler) bool { return config.SameDestination(h.config, c, d.Name) })
		if i < 0 {
			handler, closer, err := own(purpose, d)
			if err != nil {
				return nil, nil, err
			}

			if store, is := delivery.As[delivery.PositionStore](handler); is && store.StoresPosition() {
				return handler, closer, nil
			}

			i = len(slot.all)
			slot.all = append(slot.all, &sharedHandler{config: c, handler: handler, closer: closer})
		}

		h := slot.all[i]
		h.users++
		return h.handler, closerFunc(sync.OnceValue(func() error { return slot.giveBack(h) })), nil
	}
}

func (s *handlerSlot) giveBack(h *sharedHandler) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	h.users--
	if h.users > 0 {
		return nil
	}

	s.all = slices.DeleteFunc(s.all, func(other *sharedHandler) bool { return other == h })
	return h.closer.Close() //nolint:wrapcheck // as it would be without sharing
}
