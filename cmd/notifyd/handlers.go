package main

import (
	"io"
	"log/slog"
	"sync"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/internal/config"
	"github.com/notifyd/notifyd/internal/destinations"
)

// opener opens the handler of a destination for a purpose: "" to deliver events, or "alerts". The closer
// gives it back, once.
type opener func(purpose string, d config.Destination) (delivery.Handler, io.Closer, error)

// ownHandlers opens a handler at each call.
func ownHandlers(log *slog.Logger) opener {
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
// its connections. The last one to give it back closes it. Before one is opened with other settings, all that
// use it have given it back.
type sharedHandlers struct {
	mu    sync.Mutex
	slots map[handlerKey]*handlerSlot
}

type handlerKey struct{ purpose, name string }

// handlerSlot has room for one handler.
type handlerSlot struct {
	mu      sync.Mutex // held also while the handler closes: its successor must not begin before that
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
func (s *sharedHandlers) opener(log *slog.Logger) opener {
	own := ownHandlers(log)
	return func(purpose string, d config.Destination) (delivery.Handler, io.Closer, error) {
		slot := s.slot(handlerKey{purpose, d.Name})
		slot.mu.Lock()
		defer slot.mu.Unlock()
		if slot.users == 0 {
			h, closer, err := own(purpose, d)
			if err != nil {
				return nil, nil, err
			}
			if keeper, is := delivery.As[delivery.PositionKeeper](h); is && keeper.KeepsPosition() {
				return h, closer, nil
			}
			slot.handler, slot.closer = h, closer
		}
		slot.users++
		return slot.handler, closerFunc(sync.OnceValue(slot.giveBack)), nil
	}
}

func (s *handlerSlot) giveBack() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users > 0 {
		return nil
	}
	err := s.closer.Close()
	s.handler, s.closer = nil, nil
	return err //nolint:wrapcheck // as it would be without sharing
}
