package stream

import (
	"testing"
	"time"
)

// TestBusyShardChecksIDs: a shard that always has work stops once per poll interval, to check the ids that it has passed.
func TestBusyShardChecksIDs(t *testing.T) {
	t.Parallel()
	s := newSearching(t)
	s.sh.checkAt = time.Now()
	if err := s.sh.work(t.Context(), s.conn); err != nil || !s.sh.yielded {
		t.Errorf("the shard has worked on: %v", err)
	}
}
