package integration

import (
	"os"
	"testing"

	"github.com/notifyd/notifyd/internal/testenv"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(envVictim); url != "" {
		victim(url) // this process is there to be killed
		return
	}
	testenv.Main(m)
}
