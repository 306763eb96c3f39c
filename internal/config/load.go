package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// EnvPath is the environment variable that names the configuration file.
const EnvPath = "NOTIFYD_CONFIG"

// Load reads the configuration file at path. The error, if any, is an [*Error].
func Load(path string, registry Registry, lookup LookupEnv) (*Config, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data, registry, lookup)
}

// LoadDatabase is [Load] for commands that work on the tables only: it reads the
// keys version, database and retention, and ignores the rest. The secrets of the
// destinations may be missing.
func LoadDatabase(path string, lookup LookupEnv) (*Config, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return parseDatabase(path, data, lookup)
}

func read(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, &Error{[]Mistake{{File: path, Message: "cannot be read: " + reason(err)}}}
	}
	return data, nil
}

// reason returns err without the path, which is already in the message.
func reason(err error) string {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err.Error()
	}
	return err.Error()
}

// Find returns the path of the configuration file: flag if it is not empty, else
// $NOTIFYD_CONFIG if set, else the first that exists of ./notifyd.yaml,
// $XDG_CONFIG_HOME/notifyd/config.yaml and /etc/notifyd/config.yaml. The error,
// an [*Error], lists the paths tried.
func Find(flag string, lookup LookupEnv) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if path, _ := lookup(EnvPath); path != "" {
		return path, nil
	}
	tried := places(lookup)
	for _, path := range tried {
		// Load reports every error but a missing file, with the reason.
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return path, nil
		}
	}
	return "", &Error{[]Mistake{{
		File:    tried[0],
		Message: "no configuration file: tried --config, $" + EnvPath + ", " + strings.Join(tried, ", ") + `: "notifyd config init" writes one to start from`,
	}}}
}

// places lists the default paths of the file.
func places(lookup LookupEnv) []string {
	all := []string{"notifyd.yaml"}
	home, ok := lookup("XDG_CONFIG_HOME")
	if !ok || home == "" {
		if user, ok := lookup("HOME"); ok && user != "" {
			home = filepath.Join(user, ".config")
		}
	}
	if home != "" {
		all = append(all, filepath.Join(home, "notifyd", "config.yaml"))
	}
	return append(all, filepath.Join("/etc", "notifyd", "config.yaml"))
}
