package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/hashicorp/go-version"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
)

// maxManifest bounds a manifest, in bytes; registries refuse larger ones.
const maxManifest = 4 << 20

// openOCI opens an artifact: oci://REGISTRY/REPOSITORY, with :TAG or @DIGEST for one version. Each layer is a file, and
// has its name in the annotation org.opencontainers.image.title, as oras push writes it. An index has a manifest for
// each platform.
func (i *installation) openOCI(ctx context.Context) (*bundle, error) {
	repo, err := remote.NewRepository(strings.TrimPrefix(i.Source, "oci://"))
	if err != nil {
		return nil, err
	}
	// What docker login has stored.
	store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the registry's credentials: %w", err)
	}
	repo.Client = &auth.Client{Client: i.HTTP, Credential: credentials.Credential(store), Cache: auth.NewCache()}
	b := &bundle{}
	ref := repo.Reference.Reference
	if ref == "" {
		if ref, b.version, err = i.chooseTag(ctx, repo); err != nil {
			return nil, err
		}
	} else if v, err := version.NewSemver(ref); err == nil {
		b.version = v
	}
	manifest, err := i.manifest(ctx, repo, ref)
	if err != nil {
		return nil, err
	}
	layers := map[string]ocispec.Descriptor{}
	for _, l := range manifest.Layers {
		title := l.Annotations[ocispec.AnnotationTitle]
		if title == "" && len(manifest.Layers) == 1 {
			title = path.Base(repo.Reference.Repository)
		}
		if title != "" && title == path.Base(title) {
			layers[title] = l
			b.names = append(b.names, title)
		}
	}
	b.open = func(ctx context.Context, name string) (io.ReadCloser, error) {
		layer, ok := layers[name]
		if !ok {
			return nil, fs.ErrNotExist
		}
		body, err := repo.Fetch(ctx, layer)
		if err != nil {
			return nil, err
		}
		return &verified{content.NewVerifyReader(body, layer), body}, nil
	}
	return b, nil
}

// verified is a layer that is checked against its digest where it ends.
type verified struct {
	*content.VerifyReader
	io.Closer
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.VerifyReader.Read(p)
	if errors.Is(err, io.EOF) {
		if err := v.Verify(); err != nil {
			return n, err
		}
	}
	return n, err
}

// chooseTag returns the tag with the highest version that is allowed.
func (i *installation) chooseTag(ctx context.Context, repo *remote.Repository) (tag string, v *version.Version,
	err error,
) {
	var all []string
	if err := repo.Tags(ctx, "", func(tags []string) error {
		all = append(all, tags...)
		return nil
	}); err != nil {
		return "", nil, fmt.Errorf("list the tags: %w", err)
	}
	for _, t := range all {
		got, err := version.NewSemver(t)
		if err == nil && i.allows(got, 2) && (v == nil || got.GreaterThan(v)) {
			tag, v = t, got
		}
	}
	if v == nil {
		return "", nil, fmt.Errorf("no tag is a version that is allowed (%s): the newest are %s", i.constraints,
			strings.Join(all[max(0, len(all)-10):], ", "))
	}
	return tag, v, nil
}

// manifest fetches the manifest for this platform.
func (i *installation) manifest(ctx context.Context, repo *remote.Repository, ref string) (m ocispec.Manifest,
	err error,
) {
	desc, err := repo.Resolve(ctx, ref)
	if errors.Is(err, errdef.ErrNotFound) {
		return m, fmt.Errorf("there is no %s in the registry: %w", ref, err)
	}
	if err != nil {
		return m, err
	}
	if desc.MediaType == ocispec.MediaTypeImageIndex || strings.HasSuffix(desc.MediaType, "manifest.list.v2+json") {
		var index ocispec.Index
		if err := fetchJSON(ctx, repo, desc, &index); err != nil {
			return m, err
		}
		n := slices.IndexFunc(index.Manifests, func(d ocispec.Descriptor) bool {
			return d.Platform != nil && d.Platform.OS == "linux" && d.Platform.Architecture == i.Arch
		})
		if n < 0 {
			return m, fmt.Errorf("%s has nothing for linux/%s", ref, i.Arch)
		}
		desc = index.Manifests[n]
	}
	err = fetchJSON(ctx, repo, desc, &m)
	return m, err
}

func fetchJSON(ctx context.Context, repo *remote.Repository, desc ocispec.Descriptor, into any) error {
	if desc.Size > maxManifest {
		return fmt.Errorf("the manifest has %d bytes, more than %d", desc.Size, maxManifest)
	}
	data, err := content.FetchAll(ctx, repo, desc)
	if err != nil {
		return fmt.Errorf("fetch the manifest: %w", err)
	}
	return json.Unmarshal(data, into)
}
