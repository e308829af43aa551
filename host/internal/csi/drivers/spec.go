package drivers

import (
	"cmp"
	"errors"
	"fmt"
	"os/user"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/host/internal/system/process"
)

// Type names the CSI services of the driver that this node uses.
type Type string

// The types. A monolith has a node service and may have a controller service.
const (
	TypeNode       Type = "node"
	TypeController Type = "controller"
	TypeMonolith   Type = "monolith"
)

// Source says where a driver's spec comes from.
type Source string

// The sources: a csi_driver block, a registration at run time, or the driver's storage plugin, which brings it.
const (
	SourceConfig     Source = "config"
	SourceRegistered Source = "registered"
	SourcePlugin     Source = "plugin"
)

// The defaults of a Spec.
const (
	DefaultHealthTimeout = 30 * time.Second
	DefaultCallTimeout   = 2 * time.Minute
	DefaultSettleTime    = 10 * time.Minute
)

// Timeouts bound the calls of a driver's node service that mount and unmount, retries included; 0: DefaultCallTimeout.
type Timeouts struct {
	Stage     time.Duration `json:"stage,omitempty"`
	Unstage   time.Duration `json:"unstage,omitempty"`
	Publish   time.Duration `json:"publish,omitempty"`
	Unpublish time.Duration `json:"unpublish,omitempty"`
}

// Spec is an operator's description of a driver.
type Spec struct {
	// ID is what volumes name in plugin_id; see claim.CheckID.
	ID   string `json:"id"`
	Type Type   `json:"type"` // default: monolith
	// Apart is set for the controller of a driver whose node service, of the same ID, is another process on this node.
	Apart bool `json:"apart,omitempty"`
	// Endpoint is the driver's socket on the host, as unix:///path or a bare path; default: csi.sock in its folder,
	// <data_dir>/csi/<id>, or for a controller apart, <data_dir>/csi/<id>/controller. Of SourcePlugin it is what the
	// plugin told, if it told one, and means something to the plugin alone.
	Endpoint string `json:"endpoint"`
	// Plugin is the storage plugin that the driver is reached through; empty: csi-bridge, or the only one.
	Plugin string `json:"plugin,omitempty"`
	// Command runs the driver under the host; empty: the host does not start it. The process gets
	// the endpoint in CSI_ENDPOINT too (CSI spec, "General Configuration").
	Command []string `json:"command,omitempty"`
	// Env is added to the process's environment: values, or file:// references, which are read at each start and
	// stored nowhere.
	Env map[string]string `json:"env,omitempty"`
	// User, by name or number, runs the command; default: the host's own.
	User string `json:"user,omitempty"`
	// Checksum is the checksum of the command's program: "sha256:" and 64 hex digits; empty: any.
	Checksum string `json:"checksum,omitempty"`
	// Overlap is true if two processes of the driver may run side by side, so that a new program is brought up next to the
	// old one. Each takes its socket from the command, Env or CSI_ENDPOINT.
	Overlap bool `json:"overlap,omitempty"`
	// Limits bound the process together with what it starts, such as processes that serve a FUSE file
	// system; default: none.
	Limits process.Limits `json:"limits,omitzero"`
	// MountDir and StagePublishBaseDir are where a driver in a container sees its folder
	// (<data_dir>/csi/<id>), and the staging and per-workload folders in it. Both empty: the driver
	// sees the host's paths. If only one is given, the other is /csi, or /local/csi.
	MountDir            string `json:"mount_dir,omitempty"`
	StagePublishBaseDir string `json:"stage_publish_base_dir,omitempty"`
	// HealthTimeout bounds the wait for the first healthy report, and how long a registered driver's
	// socket may be gone; default 30 s.
	HealthTimeout time.Duration `json:"health_timeout"`
	// Timeouts bound its calls, and SettleTime, by default DefaultSettleTime, is how long a call that mounts may go on in
	// the driver after nobody waits for it any more: so long its volume's claim is kept.
	Timeouts   Timeouts      `json:"timeouts,omitzero"`
	SettleTime time.Duration `json:"settle_time,omitempty"`
	// AllowedMountFlags are mount flags that volumes and workloads may ask for besides harmless ones such as ro and
	// noatime: a name, which allows every value, or name=value. Only a declared driver has some.
	AllowedMountFlags []string `json:"allowed_mount_flags,omitempty"`
	// EphemeralVolumes opens the driver for volumes that it makes for one workload; nil: it is not open. Only a declared
	// driver can be.
	EphemeralVolumes *EphemeralVolumes `json:"ephemeral_volumes,omitempty"`
	Source           Source            `json:"source"`
}

const (
	defaultMountDir            = "/csi"
	defaultStagePublishBaseDir = "/local/csi"
	// maxSocketPath is what a unix socket's address holds (unix(7): 108 bytes with
	// the terminating NUL).
	maxSocketPath = 107
)

// withDefaults fills in defaults and writes the endpoint as unix:///path.
func (s Spec) withDefaults(dataDir string) Spec {
	if s.Type == "" {
		s.Type = TypeMonolith
	}
	if s.Source != SourcePlugin || s.Endpoint == "" {
		s.Endpoint = "unix://" + cmp.Or(s.socket(), filepath.Join(dir(dataDir, s.key()), "csi.sock"))
	}
	if s.MountDir != "" || s.StagePublishBaseDir != "" {
		if s.MountDir == "" {
			s.MountDir = defaultMountDir
		}
		if s.StagePublishBaseDir == "" {
			s.StagePublishBaseDir = defaultStagePublishBaseDir
		}
	}
	s.HealthTimeout = cmp.Or(s.HealthTimeout, DefaultHealthTimeout)
	s.SettleTime = cmp.Or(s.SettleTime, DefaultSettleTime)
	return s
}

// Timeout bounds one call: "stage", "unstage", "publish" or "unpublish"; any other has DefaultCallTimeout.
func (s Spec) Timeout(call string) time.Duration {
	return cmp.Or(map[string]time.Duration{
		"stage": s.Timeouts.Stage, "unstage": s.Timeouts.Unstage, "publish": s.Timeouts.Publish, "unpublish": s.Timeouts.Unpublish,
	}[call], DefaultCallTimeout)
}

// socket is the path of the driver's socket.
func (s Spec) socket() string { return strings.TrimPrefix(s.Endpoint, "unix://") }

// Validate returns everything that is wrong with the spec, defaults filled in.
func (s Spec) Validate() error {
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := claim.CheckID(s.ID); err != nil { // it becomes a part of paths
		fail("the id %w", err)
	}
	switch s.Type {
	case TypeNode, TypeController, TypeMonolith:
	default:
		fail("type %q is not node, controller or monolith", s.Type)
	}
	if s.Apart && s.Type != TypeController {
		fail("type %q is not that of a controller", s.Type)
	}
	if s.Plugin != "" {
		if err := claim.CheckID(s.Plugin); err != nil {
			fail("the plugin's name %w", err)
		}
	}
	if err := s.checkEndpoint(); err != nil {
		fail("endpoint %.200q: %w", s.Endpoint, err)
	}
	if s.MountDir != "" && !cleanAbs(s.MountDir) {
		fail("mount_dir %q is not a clean absolute path", s.MountDir)
	}
	if s.StagePublishBaseDir != "" && !cleanAbs(s.StagePublishBaseDir) {
		fail("stage_publish_base_dir %q is not a clean absolute path", s.StagePublishBaseDir)
	}
	if s.HealthTimeout < 0 {
		fail("health_timeout %s is negative", s.HealthTimeout)
	}
	for _, flag := range s.AllowedMountFlags {
		if flag == "" || strings.ContainsAny(flag, ", \t\n") {
			fail("allowed_mount_flags: %q is not one mount flag", flag)
		}
	}
	for name, ref := range s.EphemeralVolumes.secrets() {
		if !strings.HasPrefix(ref, "file:///") {
			fail("ephemeral_volumes: secrets: %s is not file:// and an absolute path", name)
		}
	}
	if err := s.checkCommand(); err != nil {
		fail("%w", err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("driver %q: %w", s.ID, err)
	}
	return nil
}

func (s Spec) checkCommand() error {
	if len(s.Command) == 0 {
		if s.User != "" {
			return fmt.Errorf("user %q is given without a command to run", s.User)
		}
		if len(s.Env) > 0 {
			return errors.New("env is given without a command to run")
		}
		if s.Overlap {
			return errors.New("overlap is given without a command to run")
		}
		return nil
	}
	if s.Source == SourceRegistered {
		return errors.New(
			"a driver registered at run time has no command: declare it with a csi_driver block, or run it yourself")
	}
	if !filepath.IsAbs(s.Command[0]) {
		return fmt.Errorf("command %q is not an absolute path", s.Command[0])
	}
	if s.User != "" {
		if _, err := user.Lookup(s.User); err != nil {
			if _, err := user.LookupId(s.User); err != nil {
				return fmt.Errorf("user %q is not known on this machine", s.User)
			}
		}
	}
	return nil
}

func (s Spec) checkEndpoint() error {
	if s.Overlap {
		return checkSocket(s.socket() + ownSockets[0])
	}
	if s.Source != SourcePlugin {
		return checkSocket(s.socket())
	}
	if len(s.Endpoint) > maxBroughtEndpoint || strings.ContainsFunc(s.Endpoint, unicode.IsControl) {
		return fmt.Errorf("it has %d bytes; at most %d are taken, and no control characters", len(s.Endpoint), maxBroughtEndpoint)
	}
	return nil
}

func checkSocket(path string) error {
	switch {
	case strings.Contains(path, "://"):
		return errors.New("only unix sockets are supported: write unix:///path")
	case !cleanAbs(path):
		return errors.New("the socket needs a clean absolute path")
	case len(path) > maxSocketPath:
		return fmt.Errorf(
			"the socket's path has %d bytes, the kernel takes %d: set a shorter endpoint, such as unix:///run/csi/driver.sock",
			len(path), maxSocketPath)
	}
	return nil
}

func cleanAbs(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && !strings.ContainsRune(path, 0)
}

// dir is the folder of one instance.
func dir(dataDir, key string) string { return filepath.Join(dataDir, "csi", key) }
