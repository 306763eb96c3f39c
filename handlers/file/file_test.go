package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/notifyd/notifyd/delivery"
	"github.com/notifyd/notifyd/handlers/internal/outcome"
	"github.com/notifyd/notifyd/internal/field"
	"github.com/notifyd/notifyd/internal/lab/testenv"
	"github.com/notifyd/notifyd/internal/lab/testenv/deliverytest"
)

func want(tb testing.TB, path string, expected ...int64) {
	tb.Helper()
	if got := ids(tb, path); !slices.Equal(got, expected) {
		tb.Errorf("%s has %v, want %v", filepath.Base(path), got, expected)
	}
}

func TestLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := open(t, dir, "a.jsonl")
	replayed, raw, none := event(42, "{ \"n\": 1.10 }"), event(43, "\x00\xff"), event(44, "")
	replayed.Replay = 2
	raw.ContentType, none.ContentType = "application/octet-stream", "text/plain"
	deliverytest.Deliver(t, h, []*delivery.Event{replayed, raw, none})
	got, err := os.ReadFile(filepath.Join(dir, "a.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	const same = `"event_type":"order.created","aggregate_type":"order","aggregate_id":"A-7","created_at":"2026-03-04T05:06:07Z"`
	const rest = `"destination":"archive","headers":{"tenant":"acme"}`
	expected := `{"event_id":42,"dedupe_id":"42r2",` + same + `,"replay":2,` + rest + `,"payload":{"n":1.10}}` + "\n" +
		`{"event_id":43,"dedupe_id":"43",` + same + "," + rest + `,"content_type":"application/octet-stream","payload_base64":"AP8="}` + "\n" +
		`{"event_id":44,"dedupe_id":"44",` + same + "," + rest + `,"content_type":"text/plain","payload_base64":""}` + "\n"
	if string(got) != expected {
		t.Errorf("got\n%swant\n%s", got, expected)
	}
}

// TestTemplates: each event goes to the file of its day and type, whose folders are made, and no value leaves its part of the path.
func TestTemplates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := open(t, dir, `./{{ date "2006-01-02" .Event.CreatedAt }}/{{ .Event.Type }}.jsonl`)
	all := events(1, 2, 3, 4)
	all[1].Type, all[3].Type = "../etc", "../etc"
	all[2].CreatedAt = all[2].CreatedAt.AddDate(0, 0, 1)
	deliverytest.Deliver(t, h, all)
	want(t, filepath.Join(dir, "2026-11-21", "order.created.jsonl"), 1)
	want(t, filepath.Join(dir, "2026-11-21", "..%2Fetc.jsonl"), 2, 4)
	want(t, filepath.Join(dir, "2026-11-22", "order.created.jsonl"), 3)
}

// TestManyFiles: a batch may have more files than are open at once.
func TestManyFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := open(t, dir, "{{ .Event.ID }}.jsonl")
	all := events(deliverytest.UpTo(3*maxOpen + 1)...)
	for range 2 {
		deliverytest.Deliver(t, h, all)
	}
	for _, e := range all {
		if got := ids(t, filepath.Join(dir, e.DedupeID()+".jsonl")); !slices.Equal(got, []int64{e.ID, e.ID}) {
			t.Errorf("%d: %v", e.ID, got)
		}
	}
	if len(h.files.open) > maxOpen {
		t.Errorf("%d files are open", len(h.files.open))
	}
}

// TestTornLine: half a line that a crash has left goes, and whole lines stay.
func TestTornLine(t *testing.T) {
	t.Parallel()
	const whole = `{"event_id":1,"event_type":"x","destination":"a"}` + "\n"
	for name, torn := range map[string]string{
		"none":             "",
		"the beginning":    `{"ev`,
		"most of it":       `{"event_id":2,"payload":{"a":"b`,
		"longer than read": `{"event_id":2,"payload":"` + strings.Repeat("x", 3*block),
		"zeros behind it":  `{"event` + "\x00\x00",
	} {
		for _, before := range []string{"", whole, whole + whole} {
			path := filepath.Join(t.TempDir(), "a.jsonl")
			testenv.WriteFile(t, path, before+torn)
			deliverytest.Deliver(t, open(t, "", path), events(7, 8))
			want(t, path, append(slices.Repeat([]int64{1}, strings.Count(before, "\n")), 7, 8)...)
		}
		t.Log(name)
	}
}

// TestEnds: a whole line without its newline stays, zeros go behind lines of notifyd, and what is not of notifyd is left as it is.
func TestEnds(t *testing.T) {
	t.Parallel()
	const own = `{"event_id":1,"event_type":"x","destination":"a"}`
	zeros := strings.Repeat("\x00", 3*block)
	for name, c := range map[string]struct {
		before string
		ids    []int64 // nil if the file is refused
	}{
		"no newline":               {own, []int64{1, 7}},
		"no newline, behind lines": {own + "\n" + own, []int64{1, 1, 7}},
		"zeros behind a line":      {own + "\n" + zeros, []int64{1, 7}},
		"zeros behind a } within":  {`{"event_id":1,"payload":{}` + zeros, []int64{7}},
		"not whole":                {`{"event_id":1,"payload":{}`, []int64{7}},
		"zeros alone":              {zeros, nil},
		"zeros behind a stranger":  {"half\n" + zeros, nil},
		"zeros behind a newline":   {"\n" + zeros, nil},
		"a whole line of another":  {`{"id":1}`, nil},
	} {
		path := filepath.Join(t.TempDir(), "a.jsonl")
		testenv.WriteFile(t, path, c.before)
		err := open(t, "", path).Deliver(t.Context(), event(7, "{}"))
		if c.ids != nil {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			want(t, path, c.ids...)
			continue
		}
		deliverytest.WantClass(t, err, "unavailable")
		if left, err := os.ReadFile(path); err != nil || string(left) != c.before {
			t.Errorf("%s: the file has changed: %v", name, err)
		}
	}
}

// TestTornByAnother: a relay that dies amid a line does so behind the back of one that has the file open.
func TestTornByAnother(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.jsonl")
	h := open(t, dir, "a.jsonl")
	deliverytest.Deliver(t, h, events(1))
	other, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close() //nolint:errcheck // it was only written to
	if _, err := other.WriteString(`{"event_id":2,"half`); err != nil {
		t.Fatal(err)
	}
	deliverytest.Deliver(t, h, events(3))
	want(t, path, 1, 3)
}

// TestRotated: a file that logrotate has renamed is left, and one that it has emptied goes on from its beginning.
func TestRotated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.jsonl")
	h := open(t, dir, "a.jsonl")
	deliverytest.Deliver(t, h, events(1, 2))
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	deliverytest.Deliver(t, h, events(3))
	want(t, path+".1", 1, 2)
	want(t, path, 3)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	deliverytest.Deliver(t, h, events(4))
	want(t, path, 4)
}

// TestTwoOnOnePath: two destinations, or relays, write to one file at the same time, and no line is in another.
func TestTwoOnOnePath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.jsonl")
	const rounds = 50
	done := make(chan []error, 2)
	for n := range int64(2) {
		h := open(t, dir, "a.jsonl")
		go func() {
			var all []error
			for i := range int64(rounds) {
				all = append(all, h.DeliverBatch(t.Context(), events(1000*n+2*i, 1000*n+2*i+1))...)
			}
			done <- all
		}()
	}
	for range 2 {
		if err := errors.Join(<-done...); err != nil {
			t.Error(err)
		}
	}
	got := ids(t, path)
	for n := range int64(2) {
		own := slices.DeleteFunc(slices.Clone(got), func(id int64) bool { return id/1000 != n })
		if len(own) != 2*rounds || !slices.IsSorted(own) {
			t.Errorf("of %d: %v", n, own)
		}
	}
}

// lockOther makes a file and locks it, as another program would.
func lockOther(t *testing.T, path string) *os.File {
	t.Helper()
	testenv.WriteFile(t, path, "")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if free, err := tryLock(f); !free || err != nil {
		t.Fatal(free, err)
	}
	return f
}

// TestLocked: a batch waits for the lock of another program. At the end of its wait, or at its deadline, the destination is
// at fault, and if the relay stops, none.
func TestLocked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "a.jsonl")
	f := lockOther(t, path)
	synctest.Test(t, func(t *testing.T) {
		h := open(t, dir, "a.jsonl")
		cause := errors.New("the end")
		late, end := context.WithTimeoutCause(t.Context(), lockWithin/2, cause)
		defer end()
		for _, ctx := range []context.Context{late, t.Context()} {
			for _, err := range h.DeliverBatch(ctx, events(1, 2)) {
				deliverytest.WantClass(t, err, "unavailable")
				deliverytest.WantText(t, err, "a.jsonl", "another program has locked the file", "fuser")
			}
		}
		stopping, stop := context.WithCancelCause(t.Context())
		time.AfterFunc(lockWithin/2, func() { stop(cause) })
		for _, err := range h.DeliverBatch(stopping, events(1, 2)) {
			if !errors.Is(err, cause) || deliverytest.Class(err) != "retry" {
				t.Error(err)
			}
		}
		want(t, path)
		time.AfterFunc(lockWithin/2, func() { unlock(f) })
		deliverytest.Deliver(t, h, events(1, 2))
		want(t, path, 1, 2)
	})
}

// TestLockedMany: one wait counts for all files of a batch, of all its parts, and ends before the timeout of the lane.
func TestLockedMany(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, n := range []string{"2", "3", "4"} {
		lockOther(t, filepath.Join(dir, n+".jsonl"))
	}
	late := lockOther(t, filepath.Join(dir, "1.jsonl"))
	synctest.Test(t, func(t *testing.T) {
		h := open(t, dir, "{{ .Payload.to }}.jsonl")
		ctx, cancel := context.WithTimeout(t.Context(), DefaultLane().Timeout)
		defer cancel()
		time.AfterFunc(lockWithin/2, func() { unlock(late) })
		begin := time.Now()
		all := []*delivery.Event{event(1, `{"to": 0}`), event(2, `{"to": 1}`), event(3, `{"to": 2}`), event(4, `{"to": 3}`), event(5, `{"to": 4}`)}
		errs := h.DeliverBatch(ctx, all)
		deliverytest.WantClasses(t, errs, deliverytest.Times("unavailable", 5))
		if waited := time.Since(begin); waited > lockWithin+lockEvery {
			t.Errorf("waited %v", waited)
		}
		for _, name := range []string{"0", "1"} {
			f, err := os.OpenFile(filepath.Join(dir, name+".jsonl"), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			if free, err := tryLock(f); !free || err != nil {
				t.Errorf("%s is still locked: %v", name, err)
			}
			_ = f.Close()
			want(t, f.Name())
		}
	})
}

// TestSameFile: paths that lead to one file do not wait for each other, in one batch and later.
func TestSameFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := filepath.Join(dir, "a.jsonl")
	testenv.WriteFile(t, a, "")
	if err := os.Link(a, filepath.Join(dir, "b.jsonl")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a.jsonl", filepath.Join(dir, "c.jsonl")); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) { // no lock is ever released here, so that a wait for one would fail
		h := open(t, dir, "{{ .Payload.to }}.jsonl")
		to := func(id int64, file string) *delivery.Event { return event(id, `{"to": "`+file+`"}`) }
		deliverytest.Deliver(t, h, []*delivery.Event{to(1, "c"), to(2, "b"), to(3, "a"), to(4, "d"), to(5, "c")})
		deliverytest.Deliver(t, h, []*delivery.Event{to(6, "b")})
		deliverytest.Deliver(t, h, []*delivery.Event{to(7, "a"), to(8, "b")})
		want(t, a, 1, 2, 3, 5, 6, 7, 8)
		// One of the names is removed.
		if err := os.Remove(filepath.Join(dir, "b.jsonl")); err != nil {
			t.Fatal(err)
		}
		deliverytest.Deliver(t, h, []*delivery.Event{to(9, "a"), to(10, "b"), to(11, "c")})
		want(t, a, 1, 2, 3, 5, 6, 7, 8, 9, 11)
		want(t, filepath.Join(dir, "b.jsonl"), 10)
	})
}

// TestFoldersAreSynchronized before the first line of a file is acknowledged, again if that has failed, and whoever made them.
func TestFoldersAreSynchronized(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := open(t, dir, `{{ .Event.AggregateType }}/{{ .Event.Type }}.jsonl`)
	var synced []string
	fails := true
	h.files.sync = func(folder string) error {
		if fails {
			return &os.PathError{Op: "sync", Path: folder, Err: syscall.EIO}
		}
		synced = append(synced, folder)
		return syncFolder(folder)
	}
	check := func(e *delivery.Event, folders ...string) {
		t.Helper()
		deliverytest.Deliver(t, h, []*delivery.Event{e})
		if !slices.Equal(synced, folders) {
			t.Errorf("%v, want %v", synced, folders)
		}
		synced = nil
	}
	deliverytest.WantClass(t, h.Deliver(t.Context(), event(1, "{}")), "unavailable")
	fails = false
	check(event(1, "{}"), filepath.Join(dir, "order"), dir)
	check(event(2, "{}"))
	want(t, filepath.Join(dir, "order", "order.created.jsonl"), 1, 2)
	testenv.WriteFile(t, filepath.Join(dir, "order", "x.jsonl"), "") // of a relay that has died
	other := event(3, "{}")
	other.Type = "x"
	check(other, filepath.Join(dir, "order"), dir)
}

// TestTurn: a batch that waits for others until its deadline costs no attempt.
func TestTurn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := open(t, dir, "a.jsonl")
		if err := h.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		errs := h.DeliverBatch(ctx, events(1, 2))
		deliverytest.WantClasses(t, errs, deliverytest.Times("throttled", 2))
		stopping, stop := context.WithCancelCause(t.Context())
		cause := errors.New("stopping")
		time.AfterFunc(time.Second, func() { stop(cause) })
		if err := h.Deliver(stopping, event(1, "{}")); !errors.Is(err, cause) || deliverytest.Class(err) != "retry" {
			t.Error(err)
		}
		h.release()
		deliverytest.Deliver(t, h, events(1, 2))
		want(t, filepath.Join(dir, "a.jsonl"), 1, 2)
	})
}

// TestPathIsHidden: a path made of a payload is in no error.
func TestPathIsHidden(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := open(t, dir, "{{ .Payload.to }}")
	if err := os.Symlink(os.DevNull, filepath.Join(dir, "ann-device")); err != nil {
		t.Fatal(err)
	}
	testenv.WriteFile(t, filepath.Join(dir, "ann-foreign"), "half")
	lockOther(t, filepath.Join(dir, "ann-locked"))
	for to, text := range map[string]string{"ann-device": "regular", "ann-foreign": "has not written", "ann-locked": "locked"} {
		ctx, cancel := context.WithTimeout(t.Context(), lockEvery)
		err := h.Deliver(ctx, event(1, `{"to": "`+to+`"}`))
		cancel()
		deliverytest.WantText(t, err, text)
		if strings.Contains(err.Error(), "ann") {
			t.Error(err)
		}
	}
}

// TestTakenBack: of a file that is not written whole no line stays, and nothing is acknowledged behind it. What other
// files have of the events behind it comes again.
func TestTakenBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := open(t, dir, "{{ .Payload.to }}.jsonl")
	to := func(id int64, file string) *delivery.Event { return event(id, `{"to": "`+file+`"}`) }
	deliverytest.Deliver(t, h, []*delivery.Event{to(1, "a"), to(2, "b")})
	// Writing to b fails, behind a.
	b := h.files.open[filepath.Join(dir, "b.jsonl")]
	reader, err := os.Open(b.f.Name())
	if err != nil {
		t.Fatal(err)
	}
	writer := b.f
	b.f = reader
	errs := h.DeliverBatch(t.Context(), []*delivery.Event{to(3, "a"), to(4, "b"), to(5, "a"), to(6, "c")})
	if got := deliverytest.Classes(errs); got != "delivered "+deliverytest.Times("unavailable", 3) {
		t.Errorf("%s: %v", got, errs)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	want(t, filepath.Join(dir, "b.jsonl"), 2)
	want(t, filepath.Join(dir, "c.jsonl"))
	deliverytest.Deliver(t, h, []*delivery.Event{to(4, "b"), to(5, "a"), to(6, "c")})
	want(t, filepath.Join(dir, "a.jsonl"), 1, 3, 5, 5)
	want(t, filepath.Join(dir, "b.jsonl"), 2, 4)
	want(t, filepath.Join(dir, "c.jsonl"), 6)
}

// TestRefusals is the table of what a file system refuses and a test cannot provoke everywhere.
func TestRefusals(t *testing.T) {
	t.Parallel()
	fixed, own := open(t, t.TempDir(), "a.jsonl"), open(t, t.TempDir(), "{{ .Payload.to }}")
	for errno, text := range map[syscall.Errno]string{
		syscall.ENOSPC: "free space", syscall.EDQUOT: "quota", syscall.EFBIG: "rotate the file", syscall.EACCES: "allow this user", syscall.EPERM: "allow this user",
		syscall.EROFS: "read-only", syscall.ENOENT: "make the folder", syscall.EIO: "check the disk", syscall.ENOLCK: "flock", syscall.ENOTSUP: "flock", syscall.EMFILE: "too many open files", syscall.EINVAL: "invalid argument", syscall.ELOOP: "must name a file",
	} {
		for _, c := range []struct {
			h  *Handler
			op string
		}{{fixed, "open"}, {fixed, "write"}, {own, "open"}, {own, "truncate"}} {
			err := c.h.failed(&os.PathError{Op: c.op, Path: "/archive/of ann", Err: errno})
			class := "unavailable"
			if c.h == own && c.op == "open" && slices.Contains([]syscall.Errno{syscall.EACCES, syscall.EPERM, syscall.EINVAL, syscall.ELOOP}, errno) {
				class = "unclear-retry"
			}
			deliverytest.WantClass(t, err, class)
			deliverytest.WantText(t, err, text)
			if !errors.Is(err, errno) || strings.Contains(err.Error(), "ann") != (c.h == fixed) {
				t.Error(err)
			}
		}
	}
}

// TestRootIsMissing: where no file can be made in the folder that all paths have in common, no event is at fault.
func TestRootIsMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	testenv.WriteFile(t, filepath.Join(dir, "archive"), "")
	h := open(t, dir, "archive/{{ .Event.Type }}")
	for _, err := range []error{h.Deliver(t.Context(), event(1, "{}")), h.failed(&os.PathError{Op: "open", Err: syscall.EACCES}), h.failed(&os.PathError{Op: "open", Err: syscall.ENAMETOOLONG})} {
		deliverytest.WantClass(t, err, "unavailable")
	}
}

// TestOwnPath: a path that is no file fails its events, what must not overtake them costs no attempt, and others are delivered.
func TestOwnPath(t *testing.T) {
	t.Parallel()
	to := func(id int64, file, aggregate string) *delivery.Event {
		e := event(id, `{"to": "`+file+`"}`)
		e.AggregateID = aggregate
		return e
	}
	for _, c := range []struct {
		call     delivery.Call
		expected string
		written  []int64
	}{
		{delivery.Call{}, "delivered unclear-retry delivered throttled unclear-retry delivered throttled", []int64{1, 3, 6}},
		{delivery.Call{TotalOrder: true}, "delivered unclear-retry " + deliverytest.Times("throttled", 5), []int64{1}},
		{delivery.Call{Unordered: true}, "delivered unclear-retry " + deliverytest.Times("delivered", 2) + " unclear-retry delivered unclear-retry", []int64{1, 3, 4, 6}},
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "folder"), 0o750); err != nil {
			t.Fatal(err)
		}
		h := open(t, dir, "{{ .Payload.to }}")
		all := []*delivery.Event{to(1, "a", "A"), to(2, "folder", "A"), to(3, "a", "B"), to(4, "a", "A"), to(5, "folder", "C"), to(6, "a", ""), to(7, "folder", "C")}
		errs := h.DeliverBatch(delivery.WithCall(t.Context(), c.call), all)
		deliverytest.WantClasses(t, errs, c.expected)
		want(t, filepath.Join(dir, "a"), c.written...)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for path, text := range map[string]string{
		"a.jsonl": "", "nowhere/a.jsonl": "make the folder", "{{ .Event.Type }}/a.jsonl": "", "nowhere/{{ .Event.Type }}": "make the folder", "../" + filepath.Base(dir): "must name a file",
	} {
		h := open(t, dir, path)
		err := h.Check(t.Context())
		if text != "" {
			deliverytest.WantClass(t, err, "unavailable")
			deliverytest.WantText(t, err, text)
		} else if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if tested, untested := h.DescribeCheck(); tested == "" || untested == "" {
			t.Errorf("%s: tested %q, untested %q", path, tested, untested)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v is left: %v", left, err)
	}
	h := open(t, dir, "a.jsonl")
	deliverytest.Deliver(t, h, events(1))
	if err := h.Check(t.Context()); err != nil {
		t.Error(err)
	}
	want(t, filepath.Join(dir, "a.jsonl"), 1)
}

func TestClosed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := open(t, dir, "a.jsonl")
	deliverytest.Deliver(t, h, events(1))
	for range 2 {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(h.files.open) != 0 {
		t.Error("files are open")
	}
	if err := h.Deliver(t.Context(), event(2, "{}")); !errors.Is(err, outcome.ErrClosed) {
		t.Error(err)
	}
	want(t, filepath.Join(dir, "a.jsonl"), 1)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for path, text := range map[string]string{
		"": "missing", "a\x00b": "NUL", "archive/": "is a folder", "{{ .Nope }}": "Nope", "{{": "template", "a.jsonl": "", "../a/{{ .Event.Type }}": "",
		".": `the part "."`, "a/..": `the part ".."`, "a/{{ .Event.Type }}/": "is a folder", "{{ .Event.Type }}//x": `the part ""`,
		"a/{{ .Event.Type }}/../x": `the part ".."`, "{{ .Event.Type }}/./x": `the part "."`, "{{ .Event.Type }}.{{ .Event.ID }}": "", "{{ .Event.Type }}/..{{ .Event.ID }}": "",
		"{{ date \"2006//}}//01\" .Event.CreatedAt }}": "", "{{ date `}}//\\` .Event.CreatedAt }}": "", `{{ date "\"}}//" .Event.CreatedAt }}`: "",
		"{{/* \" }}// */}}x": "", "{{- /* ' // */ -}}x//y": `the part ""`, "{{ if eq .Event.ID 1 }}a/{{ end }}b": "", "{{ if eq .Event.ID 1 }}a{{ else }}b//c{{ end }}": `the part ""`,
	} {
		_, err := New(Config{Path: path})
		if (err == nil) != (text == "") || err != nil && (field.Path(err) != "path" || !strings.Contains(err.Error(), text)) {
			t.Errorf("%q: %v, want %q", path, err, text)
		}
	}
}

// TestDiskFull: a batch that does not fit leaves nothing, and fits once there is space.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := testenv.SmallDisk(t, 1<<20)
	ballast, path := filepath.Join(dir, "ballast"), filepath.Join(dir, "a.jsonl")
	testenv.WriteFile(t, ballast, strings.Repeat("x", 512<<10))
	h := open(t, dir, "a.jsonl")
	all := events(deliverytest.UpTo(8)...)
	for _, e := range all {
		e.Payload = []byte(`"` + strings.Repeat("x", 100<<10) + `"`)
	}
	deliverytest.Deliver(t, h, all[:1])
	errs := h.DeliverBatch(t.Context(), all[1:])
	deliverytest.WantClasses(t, errs, deliverytest.Times("unavailable", 7))
	deliverytest.WantText(t, errs[0], "free space")
	if !errors.Is(errs[0], syscall.ENOSPC) {
		t.Error(errs[0])
	}
	want(t, path, 1)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	deliverytest.Deliver(t, h, all[1:])
	want(t, path, deliverytest.UpTo(8)...)
}
