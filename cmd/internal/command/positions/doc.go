// Package positions has the commands on the progress of destinations: positions, replay, pause and resume.
package positions
