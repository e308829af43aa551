// Package servicemanager tells the service manager that has started this process, such as systemd, how it is
// (sd_notify(3)). The variables are taken out of the environment, so that plugins, drivers and a program that is tried
// do not report for the agent; Environ has them for the program that replaces it in the same process.
package servicemanager

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// States that Tell sends.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	Alive    = "WATCHDOG=1"
)

// The variables of sd_notify(3) and sd_watchdog_enabled(3).
const (
	envSocket   = "NOTIFY_SOCKET"
	envWatchdog = "WATCHDOG_USEC"
	envOf       = "WATCHDOG_PID"
)

// Manager is the service manager. On a nil Manager every method does nothing.
type Manager struct {
	socket   string
	watchdog time.Duration
	env      []string
}

// Take returns the service manager, and removes it from the environment; nil: there is none.
func Take() (*Manager, error) {
	m := &Manager{socket: os.Getenv(envSocket)}
	usec, of := os.Getenv(envWatchdog), os.Getenv(envOf)
	for _, key := range []string{envSocket, envWatchdog, envOf} {
		if value, is := os.LookupEnv(key); is {
			m.env = append(m.env, key+"="+value)
		}
		if err := os.Unsetenv(key); err != nil {
			return nil, err
		}
	}
	if m.socket == "" {
		return nil, nil //nolint:nilnil // there need not be any
	}
	if usec != "" && (of == "" || of == strconv.Itoa(os.Getpid())) {
		n, err := strconv.ParseInt(usec, 10, 64)
		if err != nil || n <= 0 {
			return nil, fmt.Errorf("the service manager's %s=%q is not a number of microseconds", envWatchdog, usec)
		}
		m.watchdog = time.Duration(n) * time.Microsecond
	}
	return m, nil
}

// Environ returns the variables that were taken.
func (m *Manager) Environ() []string {
	if m == nil {
		return nil
	}
	return m.env
}

// Watchdog is how long the service manager waits for Alive before it ends the process; 0: forever.
func (m *Manager) Watchdog() time.Duration {
	if m == nil {
		return 0
	}
	return m.watchdog
}

// Tell sends states.
func (m *Manager) Tell(states ...string) (err error) {
	if m == nil {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("reach the service manager: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if _, err := conn.Write([]byte(strings.Join(states, "\n"))); err != nil {
		return fmt.Errorf("tell the service manager %s: %w", states[0], err)
	}
	return nil
}

// Reloading reports that the configuration is read again, until Ready.
func (m *Manager) Reloading() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	return m.Tell("RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000))
}

// AllowSilence sets how long the service manager waits for Alive, if it waits at all; 0: as at the start.
func (m *Manager) AllowSilence(d time.Duration) error {
	if m.Watchdog() == 0 {
		return nil
	}
	if d == 0 {
		d = m.watchdog
	}
	return m.Tell(fmt.Sprintf("WATCHDOG_USEC=%d", d.Microseconds()), Alive)
}
