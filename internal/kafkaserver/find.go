package kafkaserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// EnvLib names the environment variable with the directory of Kafka's jars.
// Where it is set, no other place is looked at.
const EnvLib = "NOTIFYD_KAFKA_LIB"

// ErrNotFound is in the chain of the errors of [Find] when this machine has no
// Java or no Kafka. The text names the cure.
var ErrNotFound = errors.New("no Apache Kafka found")

// Programs are what a server is run with.
type Programs struct {
	Java string // path of the program java
	Lib  string // directory with Kafka's jars
}

// Find looks for java in JAVA_HOME and PATH, and for Kafka's jars in the
// directory that [EnvLib] names, or in .cache/kafka/lib of notifyd's own checkout
// when we work inside one.
func Find() (Programs, error) {
	java, err := findJava()
	if err != nil {
		return Programs{}, err
	}
	lib := os.Getenv(EnvLib)
	if lib == "" {
		if lib, err = checkoutLib(); err != nil {
			return Programs{}, err
		}
	}
	jars, err := filepath.Glob(filepath.Join(lib, "kafka_*.jar"))
	if err != nil || len(jars) == 0 {
		return Programs{}, fmt.Errorf("%w: %s has no kafka_*.jar (make setup fetches Kafka; %s names another directory)", ErrNotFound, lib, EnvLib)
	}
	return Programs{Java: java, Lib: lib}, nil
}

func findJava() (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		if java, err := exec.LookPath(filepath.Join(home, "bin", "java")); err == nil {
			return java, nil
		}
	}
	java, err := exec.LookPath("java")
	if err != nil {
		return "", fmt.Errorf("%w: there is no java (install a Java runtime, such as openjdk-17-jre-headless)", ErrNotFound)
	}
	return java, nil
}

// checkoutLib returns the directory of the jars below the directory that holds
// our go.mod, ours or a parent's.
func checkoutLib() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "scripts", "kafka", "pom.xml")); err == nil {
			return filepath.Join(dir, ".cache", "kafka", "lib"), nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("%w: we are not in notifyd's checkout (let %s name the directory with Kafka's jars)", ErrNotFound, EnvLib)
		}
		dir = parent
	}
}
