package config

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/zclconf/go-cty/cty"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/internal/bytesize"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/sdk/convert"
)

// maxSecret bounds a file that secrets_from names, in bytes.
const maxSecret = 1 << 20

// modeFields are the keys of a capability.
var modeFields = []string{"access_mode", "attachment_mode"}

var volumeFields = fields{
	attrs: []string{
		"id", "name", "type", "namespace", "plugin_id", "external_id",
		"capacity_min", "capacity_max", "clone_id", "snapshot_id", "access_mode", "attachment_mode",
	},
	blocks: []string{
		"capability", "mount_options", "topology_request", "secrets", "secrets_from", "parameters",
		"context",
	},
	refused: map[string]string{
		"capacity": `write capacity_min = "10GiB", and capacity_max for the most that it may have`,
		"per_alloc": "is of the volume block of a Nomad job: make a volume for each workload, and name it in the workload's " +
			"volume block as source",
		"source":    ofWorkload,
		"read_only": ofWorkload,
		"sticky":    ofWorkload,
		"Volumes":   ofHTTP,
		"Volume":    ofHTTP,
	},
}

// Why keys of Nomad that are no part of a volume spec are refused.
const (
	ofWorkload = "is said where the volume is used: write it in the volume block of the workload's spec, if at all"
	ofHTTP     = "is a request of Nomad's HTTP API: write the volume itself, with the keys of its spec: id, type, plugin_id"
	ofHost     = `type: "host" is a directory of a Nomad client: here every volume has a CSI driver. For a volume on a ` +
		`host's own disk write type = "csi" and plugin_id = "local", the id of csi-local in dev mode`
)

// ReadVolume reads a volume spec from a file; "-" reads standard input. The
// error is Problems.
func ReadVolume(path string) (*hostv1.VolumeSpec, error) {
	return readSpec(path, ParseVolume)
}

// ParseVolume reads a volume spec; problems contain name. Files in secrets_from are read. The namespace is empty if
// the spec has none. The error is Problems.
func ParseVolume(name string, src []byte) (*hostv1.VolumeSpec, error) {
	return parseVolume(parseVolumeBody, name, src)
}

func parseVolume(native parser, name string, src []byte) (*hostv1.VolumeSpec, error) {
	var problems Problems
	body := parseWith(native, name, src, &problems)
	if body == nil {
		return nil, problems.err()
	}
	if at, isHost := hostVolume(body); isHost { // its other keys would only be more of the same problem
		problems.add(at, ofHost)
		return nil, problems.err()
	}
	s := open(body, "", volumeFields, nil, &problems)
	spec := &hostv1.VolumeSpec{}
	s.read(keys{
		"id": &spec.Id, "name": &spec.Name, "type": &spec.Type, "namespace": &spec.Namespace, "plugin_id": &spec.PluginId,
		"external_id": &spec.ExternalId, "capacity_min": capacity(&spec.CapacityMin),
		"capacity_max": capacity(&spec.CapacityMax), "clone_id": &spec.CloneId, "snapshot_id": &spec.SnapshotId,
	})
	spec.Capabilities = capabilities(s)
	spec.MountOptions = mountOptions(s)
	spec.TopologyRequest = topologyRequest(s)
	spec.Parameters = forDriver(s, "parameters", false)
	spec.Context = forDriver(s, "context", false)
	spec.Secrets = secrets(s)
	checkVolume(s, spec)
	if err := problems.err(); err != nil {
		return nil, err
	}
	return spec, nil
}

// hostVolume reports whether the spec is of one of Nomad's host volumes, and where it says so.
func hostVolume(body hcl.Body) (at hcl.Range, is bool) {
	content, _, _ := body.PartialContent(&hcl.BodySchema{Attributes: []hcl.AttributeSchema{{Name: "type"}}})
	if content == nil || content.Attributes["type"] == nil {
		return at, false
	}
	attr := content.Attributes["type"]
	v, diags := attr.Expr.Value(nil)
	text, ok := asString(v)
	return attr.Range, !diags.HasErrors() && ok && strings.EqualFold(text, "host")
}

func checkVolume(s *section, spec *hostv1.VolumeSpec) {
	if err := claim.CheckVolumeID(spec.Id); err != nil && claim.CheckID(plainID(spec.Id)) == nil {
		s.fail("id", "%v; write id = %q", err, plainID(spec.Id))
	}
	switch {
	case strings.EqualFold(spec.Type, "csi"):
		spec.Type = "csi"
	case spec.Type == "":
		s.fail("type", `is required; write type = "csi"`)
	default:
		s.fail("type", "%q is not supported; write type = \"csi\"", spec.Type)
	}
	d := convert.From[claim.Definition](spec)
	d.Namespace = cmp.Or(d.Namespace, claim.DefaultNamespace)
	for _, wrong := range d.Problems() {
		if !slices.Contains(modeFields, wrong.Field) { // which their readers have checked
			s.fail(wrong.Field, "%s", wrong.Problem)
		}
	}
}

// plainID returns an id like one of Nomad's, where every character is allowed.
func plainID(id string) string {
	plain := strings.Map(func(r rune) rune {
		if !claim.InID(r) {
			return '-'
		}
		return r
	}, id)
	return strings.Trim(plain, "-.")
}

// capacity reads bytes: a number, or a string such as "10GiB".
func capacity(dst *int64) func(*section, string) {
	return func(s *section, name string) {
		v, ok := s.value(name)
		if ok && v.Type() == cty.Number {
			s.integer(name, 0, math.MaxInt64, dst)
			return
		}
		var text string
		if !s.str(name, &text) || text == "" {
			return
		}
		n, err := bytesize.Parse(text)
		if err != nil {
			s.fail(name, "%v", err)
			return
		}
		*dst = n
	}
}

func capabilities(s *section) []*hostv1.VolumeCapability {
	var list []*hostv1.VolumeCapability
	for _, block := range s.content.Blocks.OfType("capability") {
		in := s.inner(block, fields{attrs: modeFields})
		c := &hostv1.VolumeCapability{}
		readModes(in, &c.AccessMode, &c.AttachmentMode)
		for _, name := range modeFields {
			if !in.has(name) {
				in.fail(name, "is required")
			}
		}
		list = append(list, c)
	}
	return oldCapability(s, list)
}

// oldCapability adds access_mode and attachment_mode at the top level, where specs for old versions of Nomad have them.
// Newer versions ignore them beside capability blocks, so there they must say the same.
func oldCapability(s *section, list []*hostv1.VolumeCapability) []*hostv1.VolumeCapability {
	if !s.has("access_mode") && !s.has("attachment_mode") {
		return list
	}
	old := &hostv1.VolumeCapability{}
	readModes(s, &old.AccessMode, &old.AttachmentMode)
	if len(s.content.Blocks.OfType("capability")) == 0 {
		for _, name := range modeFields {
			if !s.has(name) {
				s.fail(name, "is required too, or a capability block with both")
			}
		}
		return []*hostv1.VolumeCapability{old}
	}
	for _, c := range list {
		if cmp.Or(old.AccessMode, c.AccessMode) == c.AccessMode &&
			cmp.Or(old.AttachmentMode, c.AttachmentMode) == c.AttachmentMode {
			return list
		}
	}
	for _, name := range modeFields {
		if s.has(name) {
			s.fail(name, "is in none of the capability blocks: leave it out here, or write a capability block with it")
			break
		}
	}
	return list
}

// readModes reads access_mode and attachment_mode. Both may be absent.
func readModes(s *section, access, attachment *string) {
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

func mountOptions(s *section) *hostv1.MountOptions {
	o := &hostv1.MountOptions{}
	if s.block("mount_options", keys{
		"fs_type": &o.FsType, "mount_flags": &o.MountFlags, "volume_mount_group": &o.VolumeMountGroup,
	}) == nil {
		return nil
	}
	return o
}

func topologyRequest(s *section) *hostv1.TopologyRequest {
	block := s.one("topology_request")
	if block == nil {
		return nil
	}
	const levels = "write required { topology { segments { ... } } }, or preferred"
	in := s.inner(block, fields{
		blocks: []string{"required", "preferred"}, refused: map[string]string{"topology": levels, "segments": levels},
	})
	return &hostv1.TopologyRequest{Required: topologies(in, "required"), Preferred: topologies(in, "preferred")}
}

func topologies(s *section, typeName string) []*hostv1.Topology {
	var list []*hostv1.Topology
	for _, outer := range s.content.Blocks.OfType(typeName) { // in JSON each topology may have its own
		in := s.inner(outer, fields{blocks: []string{"topology"}})
		for _, block := range in.content.Blocks.OfType("topology") {
			segments := forDriver(in.inner(block, fields{blocks: []string{"segments"}}), "segments", false)
			if len(segments) == 0 {
				in.problems.add(block.DefRange, "%s: a segments block with at least one key is required", in.key("topology"))
			}
			list = append(list, &hostv1.Topology{Segments: segments})
		}
	}
	return list
}

// forDriver reads a block of free keys whose values a driver gets. Values that Nomad would make another text of are
// refused.
func forDriver(s *section, typeName string, secret bool) map[string]string {
	for _, block := range s.content.Blocks.OfType(typeName) {
		attrs, _ := block.Body.JustAttributes() // free reports what is wrong with it
		for _, attr := range attrs {
			v, diags := attr.Expr.Value(nil)
			text, ok := asText(v)
			if diags.HasErrors() || !ok || v.Type() == cty.String {
				continue
			}
			line := fmt.Sprintf("write %q", text)
			if secret {
				line = "write it in quotes"
			}
			switch {
			case v.Type() == cty.Bool:
				s.problems.add(attr.Range, "%s.%s: %s: Nomad gives the driver 1 or 0 for a boolean without quotes",
					s.key(typeName), attr.Name, line)
			case strings.Contains(text, "e"):
				s.problems.add(attr.Range, "%s.%s: write the number in quotes, as the driver is to get it", s.key(typeName),
					attr.Name)
			}
		}
	}
	return s.free(typeName, secret)
}

// secrets joins the secrets block with the files of secrets_from.
func secrets(s *section) map[string]string {
	secrets := forDriver(s, "secrets", true)
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
	path, isFile := strings.CutPrefix(ref, fileScheme)
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
func readSpec[T any](path string, parse func(name string, src []byte) (T, error)) (spec T, err error) {
	var src []byte
	if path == "-" {
		src, err = io.ReadAll(io.LimitReader(os.Stdin, maxFile+1))
		path = "<stdin>"
	} else {
		src, err = readFile(path)
	}
	if err != nil {
		return spec, Problems{unreadable(path, err)}
	}
	return parse(path, src)
}
