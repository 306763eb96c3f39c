package wire

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestKeep: kept bytes stay as they were, although their buffer is reused, and no slice that was
// handed out can reach its neighbour.
func TestKeep(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		sizes := rapid.SliceOf(rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(0, 2*blockSize))).Draw(t, "sizes")
		var a Arena
		var s Strings
		var want, texts []string
		var kept [][]byte
		buffer := make([]byte, 2*blockSize)
		for i, size := range sizes {
			raw := buffer[:size]
			for j := range raw {
				raw[j] = byte('a' + (i+j)%26)
			}
			want = append(want, string(raw))
			kept, texts = append(kept, a.Keep(raw)), append(texts, s.Keep(raw))
		}
		for i := range want {
			_ = append(kept[i], '!')
		}
		for i := range want {
			if string(kept[i]) != want[i] || texts[i] != want[i] {
				t.Fatalf("%d of %d bytes has changed", i, len(want[i]))
			}
		}
	})
}

func TestNames(t *testing.T) {
	t.Parallel()
	var n Names
	raw := []byte("order.created")
	first := n.Intern(raw)
	copy(raw, "ORDER")
	if first != "order.created" || n.Intern([]byte("order.created")) != first || n.Intern(nil) != "" || n.Intern(raw) != "ORDER.created" {
		t.Errorf("%q", first)
	}
	for i := range maxNames * 2 {
		n.Intern([]byte(strings.Repeat("x", i%100) + time.Unix(int64(i), 0).String()))
	}
	if len(n.known) != maxNames {
		t.Errorf("%d names are kept", len(n.known))
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Int64().Draw(t, "v")
		if got, err := DecodeInt8(Int8(v)); err != nil || got != v {
			t.Fatalf("%d, %v", got, err)
		}
	})
	if _, err := DecodeInt8([]byte{1}); err == nil {
		t.Error("one byte is a bigint")
	}
	if at, err := DecodeTime(Int8(1_000_000)); err != nil || !at.Equal(time.Date(2000, 1, 1, 0, 0, 1, 0, time.UTC)) {
		t.Errorf("%v, %v", at, err)
	}
	if _, err := DecodeTime(nil); err == nil {
		t.Error("nothing is a time")
	}
}
