package privateserver

import (
	"os"
	"testing"
)

// TestTempBase: data is in memory only where there is enough room.
func TestTempBase(t *testing.T) {
	t.Parallel()
	if base := tempBase(Account{}, enoughMemory); base != memoryDir {
		t.Errorf("with enough memory: %s, want %s", base, memoryDir)
	}
	if base := tempBase(Account{}, enoughMemory-1); base != os.TempDir() {
		t.Errorf("without enough memory: %s, want %s", base, os.TempDir())
	}
}
