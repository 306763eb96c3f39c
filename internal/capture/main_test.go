package capture_test

import (
	"testing"

	"github.com/notifyd/notifyd/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
