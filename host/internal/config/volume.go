package config

import (
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/pannier/pannier/cluster/claim"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// maxSecret bounds a file that secrets_from names, in bytes.
const maxSecret = 1 << 20

var volumeFields = fields{
	attrs: []string{
		"id", "name", "type", "namespace", "plugin_id", "external_id",
		"capacity_min", "capacity_max", "clone_id", "snapshot_id",
	},
	blocks: []string{
		"capability", "mount_options", "topology_request", "secrets", "secrets_from", "parameters",
		"context",
	},
}

// ReadVolume reads a volume spec from a file; "-" reads standard input. The
// error is Problems.
func ReadVolume(path string) (*hostv1.VolumeSpec, error) {
	name, src, err := readSpec(path)
	if err != nil {
		return nil, err
	}
	return ParseVolume(name, src)
}

// ParseVolume reads a volume spec; problems contain name. Files in secrets_from are read. The namespace is empty if
// the spec has none. The error is Problems.
func ParseVolume(name string, src []byte) (*hostv1.VolumeSpec, error) {
	var problems Problems
	body := parse(name, src, &problems)
	if body == nil {
		return nil, problems.err()
	}
	s := open(body, "", volumeFields, nil, &problems)
	spec := &hostv1.VolumeSpec{}
	s.str("id", &spec.Id)
	s.str("name", &spec.Name)
	s.str("type", &spec.Type)
	s.str("namespace", &spec.Namespace)
	s.str("plugin_id", &spec.PluginId)
	s.str("external_id", &spec.ExternalId)
	s.capacity("capacity_min", &spec.CapacityMin)
	s.capacity("capacity_max", &spec.CapacityMax)
	s.str("clone_id", &spec.CloneId)
	s.str("snapshot_id", &spec.SnapshotId)
	spec.Capabilities = s.capabilities()
	spec.MountOptions = s.mountOptions()
	spec.TopologyRequest = s.topologyRequest()
	spec.Parameters = s.free("parameters", false)
	spec.Context = s.free("context", false)
	spec.Secrets = s.secrets()
	s.checkVolume(spec)
	if err := problems.err(); err != nil {
		return nil, err
	}
	return spec, nil
}

func (s *section) checkVolume(spec *hostv1.VolumeSpec) {
	s.id("id", spec.Id)
	s.id("plugin_id", spec.PluginId)
	if s.has("namespace") {
		s.id("namespace", spec.Namespace)
	}
	if spec.Type != "csi" {
		s.fail("type", "%q is not supported; write type = \"csi\"", spec.Type)
	}
	if spec.Name == "" {
		spec.Name = spec.Id
	}
	if spec.CloneId != "" && spec.SnapshotId != "" {
		s.fail("snapshot_id", "clone_id is given too; a volume is made of one of them at most")
	}
	if spec.CapacityMax > 0 && spec.CapacityMin > spec.CapacityMax {
		s.fail("capacity_min", "is larger than capacity_max")
	}
	if len(spec.Capabilities) == 0 && len(s.content.Blocks.OfType("capability")) == 0 {
		s.fail("capability", "at least one block is required")
	}
}

// capacity reads bytes: a number, or a string such as "10GiB".
func (s *section) capacity(name string, dst *int64) {
	v, ok := s.value(name)
	if !ok {
		return
	}
	if v.Type() == cty.Number {
		s.integer(name, 0, math.MaxInt64, dst)
		return
	}
	var text string
	if !s.str(name, &text) || text == "" {
		return
	}
	n, err := ParseSize(text)
	if err != nil {
		s.fail(name, "%v", err)
		return
	}
	*dst = n
}

// ParseSize reads a size in bytes such as "10GiB" or "500MB"; GiB are powers of
// two, GB of ten.
func ParseSize(text string) (int64, error) {
	n, err := humanize.ParseBytes(text)
	if err != nil || n > math.MaxInt64 || strings.HasPrefix(strings.TrimSpace(text), "-") {
		return 0, fmt.Errorf("%q is not a size such as \"10GiB\"", text)
	}
	return int64(n), nil
}

func (s *section) capabilities() []*hostv1.VolumeCapability {
	var list []*hostv1.VolumeCapability
	seen := map[string]bool{}
	for _, block := range s.content.Blocks.OfType("capability") {
		in := s.inner(block, fields{attrs: []string{"access_mode", "attachment_mode"}})
		c := &hostv1.VolumeCapability{}
		in.modes(&c.AccessMode, &c.AttachmentMode)
		for _, name := range []string{"access_mode", "attachment_mode"} {
			if !in.has(name) {
				in.fail(name, "is required")
			}
		}
		if pair := c.AccessMode + " " + c.AttachmentMode; c.AccessMode != "" && c.AttachmentMode != "" {
			if seen[pair] {
				s.problems.add(block.DefRange, "capability: access_mode %q with attachment_mode %q given twice", c.AccessMode,
					c.AttachmentMode)
			}
			seen[pair] = true
		}
		list = append(list, c)
	}
	return list
}

// modes reads access_mode and attachment_mode. Both may be absent.
func (s *section) modes(access, attachment *string) {
	s.oneOf("access_mode", names(claim.AccessModes), access)
	s.oneOf("attachment_mode", names(claim.AttachmentModes), attachment)
}

func names[T ~string](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = string(v)
	}
	return out
}

func (s *section) mountOptions() *hostv1.MountOptions {
	block := s.one("mount_options")
	if block == nil {
		return nil
	}
	in := s.inner(block, fields{attrs: []string{"fs_type", "mount_flags", "volume_mount_group"}})
	options := &hostv1.MountOptions{}
	in.str("fs_type", &options.FsType)
	in.strings("mount_flags", &options.MountFlags)
	in.str("volume_mount_group", &options.VolumeMountGroup)
	return options
}

func (s *section) topologyRequest() *hostv1.TopologyRequest {
	block := s.one("topology_request")
	if block == nil {
		return nil
	}
	in := s.inner(block, fields{blocks: []string{"required", "preferred"}})
	return &hostv1.TopologyRequest{Required: in.topologies("required"), Preferred: in.topologies("preferred")}
}

func (s *section) topologies(typeName string) []*hostv1.Topology {
	outer := s.one(typeName)
	if outer == nil {
		return nil
	}
	var list []*hostv1.Topology
	in := s.inner(outer, fields{blocks: []string{"topology"}})
	for _, block := range in.content.Blocks.OfType("topology") {
		segments := in.inner(block, fields{blocks: []string{"segments"}}).free("segments", false)
		if len(segments) == 0 {
			in.problems.add(block.DefRange, "%s: a segments block with at least one key is required", in.key("topology"))
		}
		list = append(list, &hostv1.Topology{Segments: segments})
	}
	return list
}

// secrets joins the secrets block with the files of secrets_from.
func (s *section) secrets() map[string]string {
	secrets := s.free("secrets", true)
	block := s.one("secrets_from")
	if block == nil {
		return secrets
	}
	if secrets == nil {
		secrets = map[string]string{}
	}
	for name, ref := range s.free("secrets_from", true) {
		key := "secrets_from." + name
		at := secretRange(block, name)
		if _, taken := secrets[name]; taken {
			s.problems.add(at, "%s: the same key is in secrets", key)
			continue
		}
		value, err := ReadSecret(ref)
		if err != nil {
			s.problems.add(at, "%s: %v", key, err)
			continue
		}
		secrets[name] = value
	}
	return secrets
}

func secretRange(block *hcl.Block, name string) hcl.Range {
	if attrs, _ := block.Body.JustAttributes(); attrs[name] != nil {
		return attrs[name].Range
	}
	return block.DefRange
}

// ReadSecret reads the file of a file:// reference, of at most 1 MiB, without the newline at its end. Errors do not
// contain an invalid reference, which may be the secret itself.
func ReadSecret(ref string) (string, error) {
	path, isFile := strings.CutPrefix(ref, "file://")
	if !isFile || !strings.HasPrefix(path, "/") {
		return "", fmt.Errorf("is not file:// and an absolute path")
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("read the secret: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return "", fmt.Errorf("read the secret: %s is not a regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return "", fmt.Errorf("read the secret: %w", err)
	}
	if len(text) > maxSecret {
		return "", fmt.Errorf("read the secret: %s is larger than %d bytes", path, maxSecret)
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r"), nil
}

// readSpec reads a spec file; "-" is standard input.
func readSpec(path string) (name string, src []byte, err error) {
	if path == "-" {
		src, err = io.ReadAll(io.LimitReader(os.Stdin, maxFile+1))
		path = "<stdin>"
	} else {
		src, err = readFile(path)
	}
	if err != nil {
		return path, nil, Problems{unreadable(path, err)}
	}
	return path, src, nil
}
