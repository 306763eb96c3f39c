package relaytest

import (
	"testing"

	"github.com/notifyd/notifyd/internal/lab/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
