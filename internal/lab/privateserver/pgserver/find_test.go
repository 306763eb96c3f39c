package pgserver

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/notifyd/notifyd/internal/lab/privateserver"
)

// nothingOnPath is an empty PATH.
func nothingOnPath(program string) (string, error) {
	return "", errors.New(program + ": not found")
}

// fakePrograms creates a directory with a postgres that prints the given version.
func fakePrograms(t *testing.T, dir, version string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
	for _, program := range []string{"postgres", "initdb"} {
		if err := os.WriteFile(filepath.Join(dir, program), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestFindTakesTheNewestOfTheFirstPlace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fakePrograms(t, filepath.Join(dir, "a", "9", "bin"), "9.6.24")
	fakePrograms(t, filepath.Join(dir, "a", "15", "bin"), "15.18 (Debian 15.18-0+deb12u1)")
	want := fakePrograms(t, filepath.Join(dir, "a", "16", "bin"), "16.2")
	fakePrograms(t, filepath.Join(dir, "b", "18", "bin"), "18.4")
	p := places{look: nothingOnPath, groups: []placeGroup{
		{"empty", []string{filepath.Join(dir, "none", "*")}},
		{"first", []string{filepath.Join(dir, "a", "*", "bin")}},
		{"second", []string{filepath.Join(dir, "b", "*", "bin")}},
	}}
	if got, err := p.find(t.Context()); got != want || err != nil {
		t.Errorf("find = %s, %v; want %s", got, err, want)
	}
}

func TestFindFollowsTheLinkOnPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want := fakePrograms(t, filepath.Join(dir, "real"), "17.1")
	link := filepath.Join(dir, "postgres")
	if err := os.Symlink(filepath.Join(want, "postgres"), link); err != nil {
		t.Fatal(err)
	}
	p := places{look: func(string) (string, error) { return link, nil }}
	if got, err := p.find(t.Context()); got != want || err != nil {
		t.Errorf("find = %s, %v; want %s", got, err, want)
	}
}

func TestFindLooksOnlyWhereTheEnvironmentSays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good := fakePrograms(t, filepath.Join(dir, "good"), "18.4")
	p := places{
		binEnv: filepath.Join(dir, "empty"),
		look:   nothingOnPath,
		groups: []placeGroup{{"group", []string{good}}},
	}
	_, err := p.find(t.Context())
	if !errors.Is(err, privateserver.ErrNotFound) || !strings.Contains(err.Error(), EnvBinDir) {
		t.Errorf("find = %v, want %v naming %s", err, privateserver.ErrNotFound, EnvBinDir)
	}
	p.binEnv = good
	if got, err := p.find(t.Context()); got != good || err != nil {
		t.Errorf("find = %s, %v; want %s", got, err, good)
	}
}

func TestFindListsThePlaces(t *testing.T) {
	t.Parallel()
	p := places{look: nothingOnPath, groups: []placeGroup{{"Debian packages", []string{"/none/*/bin"}}}}
	_, err := p.find(t.Context())
	if !errors.Is(err, privateserver.ErrNotFound) {
		t.Fatalf("find = %v, want %v", err, privateserver.ErrNotFound)
	}
	for _, want := range []string{
		EnvBinDir + " is not set", "PATH: no postgres", "pg_config: not there", "Debian packages: none in /none/*/bin",
		"install PostgreSQL, or set " + EnvBinDir,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("find = %v\nwant %q in it", err, want)
		}
	}
}

func TestFindChecksTheServersAccount(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the server runs as ourselves")
	}
	account, err := serverAccount()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir() // closed to others
	fakePrograms(t, filepath.Join(dir, "bin"), "18.4")
	p := places{account: account, look: nothingOnPath, groups: []placeGroup{{"group", []string{filepath.Join(dir, "bin")}}}}
	_, err = p.find(t.Context())
	if !errors.Is(err, privateserver.ErrNotFound) || !strings.Contains(err.Error(), "closed to the account") {
		t.Errorf("find = %v, want that the directory is closed", err)
	}
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for out, want := range map[string]int{
		"postgres (PostgreSQL) 18.4\n":                           180004,
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": 150018,
		"postgres (PostgreSQL) 19devel\n":                        190000,
		"postgres (PostgreSQL) 18beta1\n":                        180000,
		"postgres (PostgreSQL) 16rc1 (Ubuntu 16~rc1-1)\n":        160000,
		"postgres (PostgreSQL)\n":                                -1,
		"usage: postgres\n":                                      -1,
		"":                                                       -1,
	} {
		got, err := parseVersion(out)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("parseVersion(%q) = %d, %v; want %d", out, got, err, want)
		}
	}
}

func TestStartWithoutPrograms(t *testing.T) {
	t.Parallel()
	if _, err := Start(t.Context(), Config{BinDir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "initdb") {
		t.Errorf("Start = %v, want that there is no initdb", err)
	}
}
