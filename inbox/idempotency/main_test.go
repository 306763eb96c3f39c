package idempotency_test

import (
	"testing"

	"github.com/notifyd/notifyd/inbox/idempotency"
	"github.com/notifyd/notifyd/inbox/idempotency/internal/storetest"
	"github.com/notifyd/notifyd/internal/lab/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, idempotency.NewMemory())
}
