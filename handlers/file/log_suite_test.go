package file_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/file"
	"github.com/notifyd/notifyd/handlers/handlertest"
)

// collected is the file of a log collector.
type collected struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (f *collected) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.data.Write(p)
}

func (f *collected) ids(tb testing.TB) []int64 {
	tb.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []int64
	for line := range bytes.Lines(f.data.Bytes()) {
		var event struct {
			ID int64 `json:"event_id"`
		}
		if err := json.Unmarshal(line, &event); err != nil {
			tb.Fatalf("%v in %s", err, line)
		}
		ids = append(ids, event.ID)
	}
	return ids
}

// TestLogSuite runs the properties that every destination has. A file has no
// network and no server, so that half of them are skipped.
func TestLogSuite(t *testing.T) {
	t.Parallel()
	var out collected
	handlertest.Run(t, handlertest.Destination{
		Open: func(tb testing.TB) delivery.Handler {
			tb.Helper()
			h, err := file.NewLog(file.LogConfig{}, file.WithWriter(&out))
			if err != nil {
				tb.Fatal(err)
			}
			return h
		},
		Received: out.ids,
		Rejected: func(id int64) *delivery.Event { return event(id, "{") },
		Ordered:  true,
		Secrets:  []string{"hunter2 is the password"},
		Cases: []handlertest.Case{
			{
				Name: "the disk is full", Class: delivery.ClassDestination, Text: "no space left",
				Provoke: func(tb testing.TB) error {
					tb.Helper()
					h, err := file.NewLog(file.LogConfig{}, file.WithWriter(&fullWriter{err: errors.New("no space left")}))
					if err != nil {
						tb.Fatal(err)
					}
					return h.Deliver(tb.Context(), event(1, "{}"))
				},
			},
			{
				Name: "the payload is not JSON", Class: delivery.ClassEvent, Permanent: true, Text: "not JSON",
				Provoke: func(tb testing.TB) error {
					tb.Helper()
					h, err := file.NewLog(file.LogConfig{}, file.WithWriter(&out))
					if err != nil {
						tb.Fatal(err)
					}
					return h.Deliver(tb.Context(), event(1, "hunter2 is the password"))
				},
			},
		},
	})
}
