package freeport

import "testing"

// TestPickHoldsThePort: a port stays with its process while the server is down.
func TestPickHoldsThePort(t *testing.T) {
	t.Parallel()
	port, err := Pick(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if mine, err := hold(port); mine || err != nil {
		t.Errorf("a port was held twice: %t, %v", mine, err)
	}
}
