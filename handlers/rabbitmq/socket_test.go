package rabbitmq

import (
	"bytes"
	"errors"
	"net"
	"testing"
	"time"
)

// wire notes each write.
type wire struct {
	net.Conn
	writes [][]byte
	err    error
}

func (w *wire) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	w.writes = append(w.writes, bytes.Clone(p))
	return len(p), nil
}

func (*wire) SetWriteDeadline(time.Time) error { return nil }

func TestSocketGathers(t *testing.T) {
	t.Parallel()
	w := &wire{}
	s := &socket{Conn: w, timeout: time.Second}
	write := func(p string) {
		t.Helper()
		if n, err := s.Write([]byte(p)); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
	}
	flush := func() {
		t.Helper()
		if err := s.flush(); err != nil {
			t.Fatal(err)
		}
	}
	write("a")
	s.gather()
	write("b")
	s.gather() // another delivery
	write("c")
	if len(w.writes) != 1 {
		t.Errorf("%q was written at once", w.writes)
	}
	flush() // also writes the bytes of other deliveries
	write("d")
	write(string(make([]byte, flushAt)))
	flush()
	write("e")
	s.gather()
	flush() // of nothing
	var sizes []int
	for _, p := range w.writes {
		sizes = append(sizes, len(p))
	}
	if all := bytes.Join(w.writes, nil); string(bytes.ReplaceAll(all, []byte{0}, nil)) != "abcde" || len(sizes) != 4 || sizes[2] != flushAt+1 {
		t.Errorf("wrote %v bytes, %q", sizes, bytes.ReplaceAll(all, []byte{0}, nil))
	}
}

func TestSocketTellsOfGatheredErrors(t *testing.T) {
	t.Parallel()
	w := &wire{err: errors.New("gone")}
	s := &socket{Conn: w, timeout: time.Second}
	s.gather()
	if _, err := s.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	if err := s.flush(); !errors.Is(err, w.err) {
		t.Error(err)
	}
	s.gather()
	if _, err := s.Write(make([]byte, flushAt)); !errors.Is(err, w.err) {
		t.Error(err)
	}
}
