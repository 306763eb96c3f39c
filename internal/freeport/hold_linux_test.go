package freeport

import "testing"

// TestPickKeepsWhatItGave: a port stays with the process whose server is down.
func TestPickKeepsWhatItGave(t *testing.T) {
	t.Parallel()
	port, err := Pick(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if mine, err := hold(port); mine || err != nil {
		t.Errorf("a port that was given is given again: %t, %v", mine, err)
	}
}
