package cli

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/pannier/pannier/host/internal/cli/launch"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// reservedMounts are what a program needs to see of its devices. Device files are bound
// as they are: their owner and mode say who may use them.
func reservedMounts(r *hostv1.DeviceReservation) (out []launch.Mount, err error) {
	for _, m := range r.GetMounts() {
		info, err := os.Stat(m.GetHostPath())
		if err != nil {
			return nil, fmt.Errorf("find what the workload's devices need: %w", err)
		}
		out = append(out, launch.Mount{
			Source: m.GetHostPath(), Destination: m.GetTaskPath(), ReadOnly: m.GetReadOnly(), Block: !info.IsDir(),
		})
	}
	for _, d := range r.GetNodes() {
		out = append(out, launch.Mount{Source: d.GetHostPath(), Destination: d.GetTaskPath(), Block: true})
	}
	return out, nil
}

// dockerReserved writes the flags of docker run that give a container its devices. Their
// environment is dockerTold's.
func dockerReserved(r *hostv1.DeviceReservation) (string, error) {
	var out strings.Builder
	for _, m := range r.GetMounts() {
		flag, err := dockerMount(&hostv1.Mount{HostPath: m.GetHostPath(), Destination: m.GetTaskPath(), ReadOnly: m.GetReadOnly()})
		if err != nil {
			return "", err
		}
		out.WriteString(flag)
	}
	for _, d := range r.GetNodes() {
		if err := plainPaths(&hostv1.Mount{HostPath: d.GetHostPath(), Destination: d.GetTaskPath()}, ":"); err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "--device=%s:%s:%s\n", d.GetHostPath(), d.GetTaskPath(), d.GetPermissions())
	}
	return out.String(), plainEnv(r.GetEnv())
}

// systemdReserved writes the lines that give a unit its devices. Their environment is
// systemdTold's.
func (a *app) systemdReserved(r *hostv1.DeviceReservation) (string, error) {
	var out strings.Builder
	for _, m := range r.GetMounts() {
		line, err := systemdMount(&hostv1.Mount{HostPath: m.GetHostPath(), Destination: m.GetTaskPath(), ReadOnly: m.GetReadOnly()})
		if err != nil {
			return "", err
		}
		out.WriteString(line)
	}
	for _, d := range r.GetNodes() {
		line, err := systemdMount(&hostv1.Mount{HostPath: d.GetHostPath(), Destination: d.GetTaskPath()})
		if err != nil {
			return "", err
		}
		allow, err := deviceAllow(d.GetHostPath(), d.GetPermissions(), syscall.S_IFBLK, syscall.S_IFCHR)
		if err != nil {
			return "", err
		}
		out.WriteString(line + allow)
	}
	if r != nil {
		a.note("the lines are for the devices that the workload has now; at its next start it may be given others")
	}
	return out.String(), plainEnv(r.GetEnv())
}

// plainEnv refuses variables that a shell or systemd would take apart.
func plainEnv(env map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(env)) {
		if strings.ContainsAny(key+env[key], " \t\n$`*?[];&|<>(){}!~#\\\"'") {
			return fmt.Errorf("the variable %s=%q has characters that this format cannot carry; use -o json", key, env[key])
		}
	}
	return nil
}
