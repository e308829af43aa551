package volumes

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pannier/pannier/internal/bytesize"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// The options of `docker volume create -o` and of driver_opts in a compose file.
const (
	optDriver       = "driver"
	optSize         = "size"
	optAccessMode   = "access_mode"
	optFSType       = "fs_type"
	optMountOptions = "mount_options"
	optNamespace    = "namespace"
	optReadOnly     = "read_only"
	optSnapshot     = "snapshot"
	optClone        = "clone"
	optDelete       = "delete"
	// With a name: param.type=gp3.
	optParameter = "param."
	optTopology  = "topology."
)

var knownOptions = []string{
	optDriver, optSize, optAccessMode, optFSType, optMountOptions, optNamespace, optReadOnly, optSnapshot, optClone,
	optDelete, optParameter + "NAME", optTopology + "NAME",
}

// ofUse are the options of a volume's use on this host. The others define it.
var ofUse = []string{optNamespace, optReadOnly, optDelete}

// defaultAccess is the access mode of a volume that is created without one: all containers of one host.
const defaultAccess = "single-node-writer"

// wish is what a Create asks for.
type wish struct {
	use record             // how the volume is used on this host
	def *hostv1.VolumeSpec // its definition
	// defines is true if options gave the definition; otherwise a volume that exists is used as it is.
	defines bool
}

// goodName matches the names that Docker and Podman accept. A name becomes part of a workload's id.
var goodName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)

// read reads a Create. The error names all options that are wrong.
func (c *config) read(name string, opts map[string]string) (w wish, err error) {
	if !goodName.MatchString(name) {
		return w, fmt.Errorf("volume %q: the name must have letters, digits and _ . - only, and begin with a letter or digit",
			name)
	}
	w.use.Namespace = c.Namespace
	w.def = &hostv1.VolumeSpec{
		Id: name, Type: "csi", PluginId: c.Driver, SnapshotId: opts[optSnapshot], CloneId: opts[optClone],
		Capabilities: []*hostv1.VolumeCapability{{AccessMode: defaultAccess, AttachmentMode: "file-system"}},
		MountOptions: &hostv1.MountOptions{FsType: opts[optFSType]}, Parameters: map[string]string{},
	}
	segments := map[string]string{}
	for key, value := range opts {
		var wrong error
		switch key {
		case optDriver:
			w.def.PluginId = value
		case optSize:
			w.def.CapacityMin, wrong = size(value)
		case optAccessMode:
			w.def.Capabilities[0].AccessMode = value
		case optMountOptions:
			w.def.MountOptions.MountFlags = strings.Split(value, ",")
		case optNamespace:
			w.use.Namespace = value
		case optReadOnly:
			w.use.ReadOnly, wrong = yes(value)
		case optDelete:
			w.use.Delete, wrong = yes(value)
		case optFSType, optSnapshot, optClone:
		default:
			parameter, isParameter := strings.CutPrefix(key, optParameter)
			segment, isSegment := strings.CutPrefix(key, optTopology)
			switch {
			case isParameter && parameter != "":
				w.def.Parameters[parameter] = value
			case isSegment && segment != "":
				segments[segment] = value
			default:
				wrong = fmt.Errorf("is unknown; known are %s", strings.Join(knownOptions, ", "))
			}
		}
		if wrong != nil {
			err = errors.Join(err, fmt.Errorf("volume %q: option %q: %w", name, key, wrong))
		}
		w.defines = w.defines || !slices.Contains(ofUse, key)
	}
	if len(segments) > 0 {
		w.def.TopologyRequest = &hostv1.TopologyRequest{Required: []*hostv1.Topology{{Segments: segments}}}
	}
	w.def.Namespace = w.use.Namespace
	return w, err
}

func yes(value string) (bool, error) {
	switch value {
	case "true", "false":
		return strconv.ParseBool(value)
	}
	return false, fmt.Errorf("%q is neither true nor false", value)
}

// size reads the size that a volume has at least: its driver may round it up, and it may be expanded. A bare number was
// GB to other plugins of Docker.
func size(value string) (int64, error) {
	if n, err := strconv.ParseUint(value, 10, 64); err == nil && n > 0 {
		return 0, fmt.Errorf("%q has no unit: write %[1]sGB or %[1]sB", value)
	}
	n, err := bytesize.Parse(value)
	if err == nil && n == 0 {
		err = errors.New("a volume has at least 1 byte")
	}
	return n, err
}

// anonymous reports whether the engine made up the name, of a volume that nobody named: its data is never deleted.
func anonymous(name string) bool {
	const digits = 64
	return len(name) == digits && strings.Trim(name, "0123456789abcdef") == ""
}
