// Package configuration has the commands on the configuration file: config, check-config, plan and reload.
package configuration
