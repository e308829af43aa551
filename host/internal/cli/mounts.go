package cli

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// secretsInContainer is where a container finds the workload's secrets.
const secretsInContainer = "/secrets"

// printMounts is print with the formats that a container or a unit is started with.
func (a *app) printMounts(m *hostv1.GetWorkloadResponse, table func() error) error {
	format := dockerMount
	switch a.format {
	case formatDocker:
	case formatSystemd:
		format = systemdMount
	default:
		return a.print(m, table)
	}
	w := m.GetWorkload()
	var out strings.Builder
	for _, mount := range w.GetMounts() {
		lines, err := format(mount)
		if err != nil {
			return fmt.Errorf("volume %q: %w", mount.GetRequest(), err)
		}
		out.WriteString(lines)
	}
	reserved, told := dockerReserved, dockerTold
	if a.format == formatSystemd {
		reserved, told = a.systemdReserved, a.systemdTold
	}
	lines, err := reserved(w.GetReservation())
	if err != nil {
		return fmt.Errorf("devices: %w", err)
	}
	out.WriteString(lines)
	lines, err = told(w)
	if err != nil {
		return fmt.Errorf("secrets: %w", err)
	}
	_, err = fmt.Fprint(a.out, out.String()+lines)
	return err
}

func (a *app) showMounts(w *hostv1.Workload) error {
	t := newTable("VOLUME", "DESTINATION", "HOST PATH", "ACCESS", "KIND")
	for _, m := range w.GetMounts() {
		access, kind := "read-write", "folder"
		if m.GetReadOnly() {
			access = "read-only"
		}
		if m.GetBlock() {
			kind = "device"
		}
		t.row(m.GetVolume(), m.GetDestination(), m.GetHostPath(), access, kind)
	}
	rowsOfReservation(t, w.GetReservation())
	return a.show(t)
}

// dockerMount writes a flag of docker run, one line, which a shell splits as it is.
func dockerMount(m *hostv1.Mount) (string, error) {
	if m.GetBlock() {
		access := "rwm"
		if m.GetReadOnly() {
			access = "r"
		}
		if err := plainPaths(m, ":"); err != nil {
			return "", err
		}
		return fmt.Sprintf("--device=%s:%s:%s\n", m.GetHostPath(), m.GetDestination(), access), nil
	}
	if err := plainPaths(m, ",\""); err != nil {
		return "", err
	}
	text := fmt.Sprintf("--mount type=bind,source=%s,target=%s", m.GetHostPath(), m.GetDestination())
	if p := m.GetPropagation(); p != "" && p != "rprivate" {
		text += ",bind-propagation=" + p
	}
	if m.GetReadOnly() {
		text += ",readonly"
	}
	return text + "\n", nil
}

// systemdMount writes lines of a unit's [Service] section (systemd.exec(5)).
func systemdMount(m *hostv1.Mount) (string, error) {
	if err := plainPaths(m, ":\\\"'"); err != nil {
		return "", err
	}
	key := "BindPaths"
	if m.GetReadOnly() {
		key = "BindReadOnlyPaths"
	}
	escape := strings.NewReplacer("%", "%%")
	text := fmt.Sprintf("%s=%s:%s\n", key, escape.Replace(m.GetHostPath()), escape.Replace(m.GetDestination()))
	if !m.GetBlock() {
		return text, nil
	}
	access := "rwm"
	if m.GetReadOnly() {
		access = "r"
	}
	allow, err := deviceAllow(m.GetHostPath(), access, syscall.S_IFBLK)
	return text + allow, err
}

// deviceAllow is a unit's line that lets it use a device file of one of the kinds.
// DeviceAllow takes names under /dev only (systemd.resource-control(5)).
func deviceAllow(path, access string, kinds ...uint32) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("find its device: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !slices.Contains(kinds, stat.Mode&syscall.S_IFMT) {
		return "", fmt.Errorf("%s is no device file of the kind that it should be", path)
	}
	folder := "block"
	if stat.Mode&syscall.S_IFMT == syscall.S_IFCHR {
		folder = "char"
	}
	return fmt.Sprintf("DeviceAllow=/dev/%s/%d:%d %s\n", folder, unix.Major(stat.Rdev), unix.Minor(stat.Rdev), access), nil
}

// dockerTold writes the flags that give a container its secrets, and tell it where they
// are and which ports it has.
func dockerTold(w *hostv1.Workload) (string, error) {
	var out strings.Builder
	if dir := w.GetSecretsDir(); dir != "" {
		mount, err := dockerMount(&hostv1.Mount{HostPath: dir, Destination: secretsInContainer, ReadOnly: true})
		if err != nil {
			return "", err
		}
		out.WriteString(mount)
	}
	env := variables(w, secretsInContainer)
	for _, key := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&out, "--env=%s=%s\n", key, env[key])
	}
	return out.String(), nil
}

// systemdTold writes the lines that tell a unit where its secrets are and which ports
// it has. It sees the host's files, so it needs no mount. The lines are written once: a
// port that is another at each start is left out.
func (a *app) systemdTold(w *hostv1.Workload) (string, error) {
	dir := w.GetSecretsDir()
	if err := plainPaths(&hostv1.Mount{HostPath: dir}, "\\\"'"); err != nil {
		return "", err
	}
	env := variables(w, dir)
	for _, p := range w.GetSpec().GetPorts() {
		if p.GetStatic() == 0 {
			delete(env, variable("PORT", p.GetLabel()))
			a.note("port %q is not among the lines: it may be another at each start; give it a static one, or ask pannier workload status -o json",
				p.GetLabel())
		}
	}
	var out strings.Builder
	for _, key := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&out, "Environment=%s=%s\n", key, strings.ReplaceAll(env[key], "%", "%%"))
	}
	return out.String(), nil
}

// plainPaths refuses paths that a shell or the format would take apart.
func plainPaths(m *hostv1.Mount, forbidden string) error {
	for _, path := range []string{m.GetHostPath(), m.GetDestination()} {
		if strings.ContainsAny(path, " \t\n$`*?[];&|<>(){}!~#"+forbidden) {
			return fmt.Errorf("the path %q has characters that this format cannot carry; use -o json", path)
		}
	}
	return nil
}
