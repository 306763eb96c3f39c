package file

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers"
	"github.com/notifyd/notifyd/handlers/handlertest"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func event(id int64, payload string) *delivery.Event {
	return deliverytest.Event("archive", id, payload)
}

func events(ids ...int64) []*delivery.Event { return deliverytest.Spread("archive", ids...) }

// open makes a handler for path, relative to dir.
func open(tb testing.TB, dir, path string) *Handler {
	tb.Helper()
	return deliverytest.Open(tb, New, Config{Path: path}, handlers.WithBaseDir(dir))
}

// ids returns the ids in a file, in order, each of whose lines must be whole; none if there is no file.
func ids(tb testing.TB, path string) []int64 {
	tb.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		tb.Fatal(err)
	}
	all := []int64{}
	for line := range bytes.Lines(text) {
		var e struct {
			ID int64 `json:"event_id"`
		}
		if err := json.Unmarshal(line, &e); err != nil || line[len(line)-1] != '\n' {
			tb.Fatalf("%v in %q", err, line)
		}
		all = append(all, e.ID)
	}
	return all
}

// TestSuite runs the properties that every destination has. The folder is the server: it can be moved away.
func TestSuite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	folder, away := filepath.Join(dir, "archive"), filepath.Join(dir, "away")
	move := func(from, to string) func(testing.TB) {
		return func(tb testing.TB) {
			tb.Helper()
			if err := os.Rename(from, to); err != nil {
				tb.Fatal(err)
			}
		}
	}
	testenv.WriteFile(t, filepath.Join(folder, "events.jsonl"), "")
	where := filepath.Join(folder, "events.jsonl")
	handlertest.Run(t, handlertest.Destination{
		Open: func(tb testing.TB) delivery.Handler {
			tb.Helper()
			h, err := New(Config{Path: where})
			if err != nil {
				tb.Fatal(err)
			}
			return h
		},
		Received: func(tb testing.TB) []int64 { tb.Helper(); return ids(tb, where) },
		Rejected: func(id int64) *delivery.Event { return event(id, "{") },
		Stop:     move(folder, away), Start: move(away, folder),
		Ordered: true, Secrets: []string{"hunter2 is the password"},
		Cases: cases(dir),
	})
}

// cases are the faults that a file can have for any user, the administrator too.
func cases(dir string) []handlertest.Case {
	once := func(path, payload string, prepare func(tb testing.TB)) func(testing.TB) error {
		return func(tb testing.TB) error {
			tb.Helper()
			if prepare != nil {
				prepare(tb)
			}
			return open(tb, dir, path).Deliver(tb.Context(), event(1, payload))
		}
	}
	const isDestination, isEvent = delivery.ClassDestination, delivery.ClassEvent
	return []handlertest.Case{
		{Name: "the folder is missing", Provoke: once("nowhere/events.jsonl", "{}", nil), Class: isDestination, Text: "make the folder"},
		{Name: "the folder before a template is missing", Provoke: once("nowhere/{{ .Event.Type }}/events.jsonl", "{}", nil), Class: isDestination, Text: "make the folder"},
		{Name: "the path is a folder", Provoke: once("archive", "{}", nil), Class: isDestination, Text: "must name a file"},
		{Name: "a file is where a folder should be", Provoke: once("archive/events.jsonl/x", "{}", nil), Class: isDestination, Text: "must name a file"},
		{Name: "not a regular file", Provoke: once(os.DevNull, "{}", nil), Class: isDestination, Text: "type: log"},
		{Name: "half a line of another program", Provoke: once("foreign.txt", "{}", func(tb testing.TB) {
			tb.Helper()
			testenv.WriteFile(tb, filepath.Join(dir, "foreign.txt"), "root:x:0:0\nhalf")
		}), Class: isDestination, Text: "name another file"},
		{Name: "a name that is too long", Provoke: once("{{ .Payload.to }}", `{"to": "`+strings.Repeat("x", 300)+`"}`, nil), Class: isEvent, Permanent: true, Unclear: true, Text: "shorten path"},
		{Name: "a path out of the folder", Provoke: once("archive/{{ .Payload.to }}", `{"to": ".."}`, nil), Class: isEvent, Permanent: true, Text: "empty or dots"},
		{Name: "no name", Provoke: once("archive/{{ .Payload.to }}", `{"to": ""}`, nil), Class: isEvent, Permanent: true, Text: "empty or dots"},
		{Name: "not in the event", Provoke: once("archive/{{ .Payload.nope }}", `{}`, nil), Class: isEvent, Permanent: true, Text: "nope"},
		{Name: "the payload is not JSON", Provoke: once("archive/events.jsonl", "hunter2 is the password", nil), Class: isEvent, Permanent: true, Text: "not JSON"},
	}
}
