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

// LoadDatabase is [Load] for who works on the tables only: it reads the keys
// version, database and retention, and leaves the rest alone. The secrets of the
// destinations need not be there.
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

// reason returns err without the path, which the message has already.
func reason(err error) string {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err.Error()
	}
	return err.Error()
}

// Find returns the path of the configuration file: flag if it is not empty,
// else what $NOTIFYD_CONFIG says, else the first that exists of ./notifyd.yaml,
// $XDG_CONFIG_HOME/notifyd/config.yaml and /etc/notifyd/config.yaml. The error,
// an [*Error], lists what was tried.
func Find(flag string, lookup LookupEnv) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if path, _ := lookup(EnvPath); path != "" {
		return path, nil
	}
	tried := places(lookup)
	for _, path := range tried {
		// Anything but "not there" is reported by Load, with the reason.
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return path, nil
		}
	}
	return "", &Error{[]Mistake{{
		File:    tried[0],
		Message: "no configuration file: tried --config, $" + EnvPath + ", " + strings.Join(tried, ", ") + `: "notifyd config init" writes one to start from`,
	}}}
}

// places lists where the file may be if nobody says where it is.
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
