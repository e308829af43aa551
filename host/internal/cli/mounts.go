package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/host/internal/cli/launch/child"
	"github.com/pannier/pannier/internal/trusted"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	servicev1 "github.com/pannier/pannier/sdk/proto/pannier/service/v1"
)

// secretsInContainer is where a container has the workload's secrets.
const secretsInContainer = "/secrets"

// workloadUnit is the unit that starts a workload for others, and workloadSpec the file that it reads.
const (
	workloadUnit = "pannier-workload@%s.service"
	workloadSpec = "/etc/pannier/workloads/%s.hcl"
)

// printMounts is print with more formats: flags of docker run, lines of a unit, and a unit's drop-in.
func printMounts(out *Printer, m *hostv1.GetWorkloadResponse, err error, people func()) error {
	if err != nil || out.format == formatTable || out.format == formatJSON {
		return out.Print(m, err, people)
	}
	w := m.GetWorkload()
	format, environment := dockerPlace, dockerVariables
	var text strings.Builder
	if out.format != formatDocker {
		format, environment = systemdPlace, out.systemdVariables
		if err := checkDestinations(w.GetMounts()); err != nil {
			return err
		}
	}
	if out.format == formatDropin {
		text.WriteString(dropin(out, w.GetSpec()))
	}
	for _, p := range places(w) {
		lines, err := format(p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.of, err)
		}
		text.WriteString(lines)
	}
	lines, err := environment(w)
	if err != nil {
		return fmt.Errorf("variables: %w", err)
	}
	out.write(text.String() + lines)
	return out.outErr
}

// place is a path of the host that a program sees.
type place struct {
	of       string // in errors
	from, to string
	readOnly bool
	// propagation of a mount; empty: the default.
	propagation string
	// access to a device file, some of "rwm", and its kinds; empty: it is none.
	access string
	kinds  []uint32
}

// places are the volumes of a workload, and what its devices need.
func places(w *hostv1.Workload) (all []place) {
	for _, m := range w.GetMounts() {
		p := place{
			of: fmt.Sprintf("volume %q", m.GetRequest()), from: m.GetHostPath(), to: m.GetDestination(),
			readOnly: m.GetReadOnly(), propagation: m.GetPropagation(),
		}
		if m.GetBlock() {
			p.access, p.kinds = "rwm", []uint32{syscall.S_IFBLK}
			if p.readOnly {
				p.access = "r"
			}
		}
		all = append(all, p)
	}
	for _, m := range w.GetReservation().GetMounts() {
		all = append(all, place{of: "devices", from: m.GetHostPath(), to: m.GetTaskPath(), readOnly: m.GetReadOnly()})
	}
	for _, d := range w.GetReservation().GetNodes() {
		all = append(all, place{
			of: "devices", from: d.GetHostPath(), to: d.GetTaskPath(), access: d.GetPermissions(),
			kinds: []uint32{syscall.S_IFBLK, syscall.S_IFCHR},
		})
	}
	return all
}

// dropin returns the lines of a unit that starts with the workload's unit and never without it, up to those of its
// [Service] section.
func dropin(out *Printer, spec *hostv1.WorkloadSpec) string {
	unit, path := fmt.Sprintf(workloadUnit, spec.GetId()), fmt.Sprintf(workloadSpec, spec.GetId())
	if _, err := os.Stat(path); err != nil {
		out.Note("warning: %s reads the spec there: %v", unit, err)
	}
	text := fmt.Sprintf("[Unit]\nRequires=%[1]s\nAfter=%[1]s\n\n[Service]\n", unit)
	if len(spec.GetServices()) > 0 {
		// The start registers again what an earlier stop of the unit has taken out of the catalog: the workload's own unit
		// may have run on.
		text += fmt.Sprintf("ExecStartPre=+-/usr/bin/pannier workload start %[1]s\n"+
			"ExecStop=+-/usr/bin/pannier workload leave %[1]s\n", path)
	}
	return text
}

// dockerPlace returns a flag of docker run, one line without characters that a shell would split.
func dockerPlace(p place) (string, error) {
	if p.access != "" {
		return fmt.Sprintf("--device=%s:%s:%s\n", p.from, p.to, p.access), plainPaths(":", p.from, p.to)
	}
	text := fmt.Sprintf("--mount type=bind,source=%s,target=%s", p.from, p.to)
	if p.propagation != "" && p.propagation != "rprivate" {
		text += ",bind-propagation=" + p.propagation
	}
	if p.readOnly {
		text += ",readonly"
	}
	return text + "\n", plainPaths(",\"", p.from, p.to)
}

// checkDestinations refuses destinations that another user than root could replace with a link: systemd follows it when
// it makes the destination and mounts there (systemd.exec(5)).
func checkDestinations(mounts []*hostv1.Mount) error {
	for _, m := range mounts {
		parent := path.Dir(m.GetDestination())
		err := trusted.Dir(parent)
		for parent != "/" && errors.Is(err, fs.ErrNotExist) { // systemd makes it
			parent = path.Dir(parent)
			err = trusted.Dir(parent)
		}
		for _, other := range mounts {
			if strings.HasPrefix(m.GetDestination(), other.GetDestination()+"/") {
				err = fmt.Errorf("it is in the volume %q, whose user could replace it", other.GetRequest())
			}
		}
		if err != nil {
			return fmt.Errorf("volume %q: the destination %s is not safe in a unit: choose one whose parent directories only "+
				"root can write in: %w", m.GetRequest(), m.GetDestination(), err)
		}
	}
	return nil
}

// systemdPlace returns lines of a unit's [Service] section (systemd.exec(5)).
func systemdPlace(p place) (string, error) {
	if err := plainPaths(":\\\"'", p.from, p.to); err != nil {
		return "", err
	}
	key := "BindPaths"
	if p.readOnly {
		key = "BindReadOnlyPaths"
	}
	text := fmt.Sprintf("%s=%s:%s\n", key, escaped(p.from), escaped(p.to))
	if p.access == "" {
		return text, nil
	}
	allow, err := deviceAllow(p.from, p.access, p.kinds)
	return text + allow, err
}

// deviceAllow returns a unit's line that allows a device file of one of the kinds.
// DeviceAllow takes names under /dev only (systemd.resource-control(5)).
func deviceAllow(path, access string, kinds []uint32) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("find its device: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !slices.Contains(kinds, stat.Mode&syscall.S_IFMT) {
		return "", fmt.Errorf("%s is not a device file of the expected kind", path)
	}
	folder := "block"
	if stat.Mode&syscall.S_IFMT == syscall.S_IFCHR {
		folder = "char"
	}
	return fmt.Sprintf("DeviceAllow=/dev/%s/%d:%d %s\n", folder, unix.Major(stat.Rdev), unix.Minor(stat.Rdev), access), nil
}

// dockerVariables returns the flags that mount a container's secrets and set the variables
// with their paths and the ports.
func dockerVariables(w *hostv1.Workload) (string, error) {
	var out strings.Builder
	var mounts []place
	if dir := w.GetSecretsDir(); dir != "" {
		mounts = append(mounts, place{from: dir, to: secretsInContainer, readOnly: true})
	}
	for _, s := range w.GetServices() { // the bootstrap has the host's paths, and the proxy makes its sockets there
		if s.GetAdminSocket() != "" {
			folder := path.Dir(s.GetAdminSocket())
			mounts = append(mounts, place{from: folder, to: folder})
		}
	}
	for _, m := range mounts {
		text, err := dockerPlace(m)
		if err != nil {
			return "", err
		}
		out.WriteString(text)
	}
	env := variables(w, secretsInContainer)
	for _, key := range slices.Sorted(maps.Keys(env)) {
		fmt.Fprintf(&out, "--env=%s=%s\n", key, env[key])
	}
	return out.String(), plainEnv(env)
}

// systemdVariables returns the lines that set a unit's variables with the paths of its secrets
// and the ports. A unit sees the host's files, so it needs no mount. The lines are written
// once, so a port that changes at each start is left out.
func (p *Printer) systemdVariables(w *hostv1.Workload) (string, error) {
	if w.GetReservation() != nil {
		p.Note("the lines name the devices that the workload has now; they may change at its next start")
	}
	var out strings.Builder
	dir := w.GetSecretsDir()
	if err := plainPaths("\\\"'", dir, w.GetCredentialsSocket()); err != nil {
		return "", err
	}
	loaded := map[string]string{} // by the file's path
	for _, c := range w.GetCredentials() {
		if err := fitsAddress(w.GetSpec().GetUnits(), c.GetName()); err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "LoadCredential=%s:%s\n", c.GetName(), escaped(w.GetCredentialsSocket()))
		loaded[c.GetFile()] = c.GetName()
	}
	env := variables(w, dir)
	if len(loaded) > 0 {
		delete(env, "PANNIER_SECRETS_DIR") // its files are not named as the credentials
	}
	for _, port := range w.GetSpec().GetPorts() {
		if port.GetStatic() == 0 {
			delete(env, variable("PORT", port.GetLabel()))
			forgetUpstreams(env, w, port.GetLabel())
			p.Note("port %q is left out: it may change at each start; give it a static number, or use "+
				"pannier workload status -o json", port.GetLabel())
		}
	}
	for _, key := range slices.Sorted(maps.Keys(env)) {
		value := escaped(env[key])
		if name := loaded[env[key]]; name != "" {
			value = "%d/" + name // the unit's credentials
		}
		fmt.Fprintf(&out, "Environment=%s=%s\n", key, value)
	}
	return out.String(), plainEnv(env)
}

// forgetUpstreams removes the upstreams whose port has a label.
func forgetUpstreams(env map[string]string, w *hostv1.Workload, label string) {
	for _, s := range w.GetSpec().GetServices() {
		for _, u := range s.GetConnect().GetSidecarService().GetProxy().GetUpstreams() {
			if u.GetLocalBindPortLabel() == label {
				delete(env, variable(upstreamAddress, u.GetDestinationName()))
				delete(env, nomadUpstream(u.GetDestinationName()))
			}
		}
	}
}

// escaped keeps systemd from expanding anything in a value.
func escaped(value string) string { return strings.ReplaceAll(value, "%", "%%") }

// maxLoaded bounds the lengths of a unit's and a credential's name together: systemd puts both into the address of a
// unix socket, of 107 bytes, as @0123456789abcdef/unit/UNIT/CREDENTIAL.
const maxLoaded = 107 - len("@0123456789abcdef/unit//")

func fitsAddress(units []string, credential string) error {
	for _, unit := range units {
		if len(unit)+len(credential) > maxLoaded {
			return fmt.Errorf("%s cannot load the credential %s: the two names have more than %d bytes together; choose a shorter name "+
				"for the unit or the service", unit, credential, maxLoaded)
		}
	}
	return nil
}

// plainPaths refuses paths that a shell or the format would split.
func plainPaths(forbidden string, paths ...string) error {
	for _, path := range paths {
		if !plain(path, forbidden) {
			return fmt.Errorf("the path %q has characters that this format cannot carry; use -o json", path)
		}
	}
	return nil
}

func plain(text, forbidden string) bool {
	return !strings.ContainsAny(text, " $`*?[];&|<>(){}!~#"+forbidden) && text == printable(text)
}

// deviceMounts returns the mounts that a program needs for its devices. Device files are bound
// as they are: their owner and mode decide who may use them.
func deviceMounts(r *hostv1.DeviceReservation) (out []child.Mount, err error) {
	for _, m := range r.GetMounts() {
		info, err := os.Stat(m.GetHostPath())
		if err != nil {
			return nil, fmt.Errorf("look up what the workload's devices need: %w", err)
		}
		out = append(out, child.Mount{
			Source: m.GetHostPath(), Destination: m.GetTaskPath(), ReadOnly: m.GetReadOnly(), Block: !info.IsDir(),
		})
	}
	for _, d := range r.GetNodes() {
		out = append(out, child.Mount{Source: d.GetHostPath(), Destination: d.GetTaskPath(), Block: true})
	}
	return out, nil
}

// plainEnv refuses variables that a shell or systemd would split.
func plainEnv(env map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(env)) {
		if !plain(key+env[key], "\\\"'") {
			return fmt.Errorf("the variable %s=%q has characters that this format cannot carry; use -o json", key, env[key])
		}
	}
	return nil
}

// variables returns the environment that describes a workload's devices, ports and secrets to
// its program: the paths of secrets, never their content. secretsAt is where the program sees
// the workload's secrets directory.
func variables(w *hostv1.Workload, secretsAt string) map[string]string {
	env := map[string]string{}
	maps.Copy(env, w.GetReservation().GetEnv())
	for label, number := range w.GetPorts() {
		env[variable("PORT", label)] = strconv.Itoa(int(number))
	}
	for _, s := range w.GetServices() {
		for _, name := range slices.Sorted(maps.Keys(s.GetUpstreams())) {
			if _, taken := env[variable(upstreamAddress, name)]; taken {
				continue
			}
			address := s.GetUpstreams()[name]
			env[variable(upstreamAddress, name)] = address
			if !strings.HasPrefix(address, "unix://") { // which an address of Nomad's never is
				env[nomadUpstream(name)] = address
			}
		}
	}
	if w.GetSecretsDir() == "" {
		return env
	}
	env["PANNIER_SECRETS_DIR"] = secretsAt
	seen := func(file string) string {
		return path.Join(secretsAt, strings.TrimPrefix(file, w.GetSecretsDir()))
	}
	var tokens []string
	for _, s := range w.GetServices() {
		if s.GetTokenFile() != "" {
			if !identityOnly(w, s.GetName()) {
				tokens = append(tokens, seen(s.GetTokenFile()))
			}
			env[variable("TOKEN_FILE", s.GetName())] = seen(s.GetTokenFile())
		}
		if s.GetBootstrapFile() != "" {
			env[variable("BOOTSTRAP_FILE", s.GetName())] = seen(s.GetBootstrapFile())
		}
	}
	if len(tokens) == 1 {
		env[tokenFileVariable] = tokens[0]
	}
	return env
}

// upstreamAddress is in the names of variables with the address of an upstream.
const upstreamAddress = "UPSTREAM_ADDR"

// nomadUpstream returns the name that Nomad gives the variable with an upstream's address; it keeps lower case.
func nomadUpstream(name string) string { return "NOMAD_" + upstreamAddress + "_" + inVariable(name) }

// identityOnly reports whether a token is of an identity of the workload, and none for Consul.
func identityOnly(w *hostv1.Workload, name string) bool {
	return slices.ContainsFunc(w.GetSpec().GetServices(), func(s *servicev1.Service) bool {
		return s.GetName() == name && s.GetIdentityOnly()
	})
}

// variable returns a variable's name, such as PANNIER_PORT_HTTP.
func variable(kind, name string) string {
	return "PANNIER_" + kind + "_" + strings.ToUpper(inVariable(name))
}

// inVariable replaces what a variable's name cannot have.
func inVariable(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, name)
}
