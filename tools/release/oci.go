package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"
)

// descriptor refers to a blob (OCI image-spec, descriptor.md).
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

// manifest lists the blobs of an image, or with Manifests the images of an index (image-spec, manifest.md and
// image-index.md).
type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        *descriptor  `json:"config,omitempty"`
	Layers        []descriptor `json:"layers,omitempty"`
	Manifests     []descriptor `json:"manifests,omitempty"`
}

// config describes an image (image-spec, config.md).
type config struct {
	platform
	Created time.Time        `json:"created"`
	Config  map[string]any   `json:"config"`
	RootFS  map[string]any   `json:"rootfs"`
	History []map[string]any `json:"history"`
}

const media = "application/vnd.oci.image."

// layout is an OCI image layout while it is written (image-spec, image-layout.md).
type layout struct{ files []file }

// add adds a blob.
func (l *layout) add(mediaType string, data []byte) descriptor {
	digest := fmt.Sprintf("%x", sha256.Sum256(data))
	l.files = append(l.files, file{name: "blobs/sha256/" + digest, mode: 0o644, data: data})
	return descriptor{MediaType: media + mediaType, Digest: "sha256:" + digest, Size: len(data)}
}

func (l *layout) addJSON(mediaType string, v any) (descriptor, error) {
	data, err := json.Marshal(v)
	return l.add(mediaType, data), err
}

// image returns an OCI image layout in an archive: for each architecture one image, which holds /paiinit and nothing
// else. The archive also has the manifest.json of `docker save`, for engines that cannot load OCI layouts; it names the
// image of the first architecture.
func (r release) image() ([]byte, error) {
	var l layout
	index := manifest{SchemaVersion: 2, MediaType: media + "index.v1+json"}
	type saved struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	var docker []saved
	for _, arch := range architectures() {
		plain, err := tarball([]file{{name: "paiinit", mode: 0o755, data: r.binaries[arch]}}, r.date)
		if err != nil {
			return nil, err
		}
		zipped, err := compress(plain)
		if err != nil {
			return nil, err
		}
		p := platform{Architecture: arch, OS: "linux"}
		layer := l.add("layer.v1.tar+gzip", zipped)
		about, err := l.addJSON("config.v1+json", config{
			platform: p, Created: r.date,
			Config: map[string]any{
				"Entrypoint": []string{"/paiinit"},
				"Labels": map[string]string{
					"org.opencontainers.image.version": r.version,
					"org.opencontainers.image.source":  "https://github.com/paiinit/paiinit",
				},
			},
			RootFS: map[string]any{
				"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(plain))},
			},
			History: []map[string]any{{"created": r.date, "created_by": "COPY paiinit /paiinit"}},
		})
		if err != nil {
			return nil, err
		}
		d, err := l.addJSON("manifest.v1+json", manifest{
			SchemaVersion: 2, MediaType: media + "manifest.v1+json", Config: &about, Layers: []descriptor{layer},
		})
		if err != nil {
			return nil, err
		}
		d.Platform = &p
		index.Manifests = append(index.Manifests, d)
		if docker == nil {
			blob := func(d descriptor) string { return "blobs/sha256/" + d.Digest[len("sha256:"):] }
			docker = []saved{
				{Config: blob(about), RepoTags: []string{"paiinit:" + r.version}, Layers: []string{blob(layer)}},
			}
		}
	}
	all, err := l.addJSON("index.v1+json", index)
	if err != nil {
		return nil, err
	}
	all.Annotations = map[string]string{
		"org.opencontainers.image.ref.name": r.version,
		"io.containerd.image.name":          "docker.io/library/paiinit:" + r.version,
	}
	for name, v := range map[string]any{
		"oci-layout":    map[string]string{"imageLayoutVersion": "1.0.0"},
		"index.json":    manifest{SchemaVersion: 2, MediaType: media + "index.v1+json", Manifests: []descriptor{all}},
		"manifest.json": docker,
	} {
		data, err := json.Marshal(v)
		if err != nil {
			return nil, err
		}
		l.files = append(l.files, file{name: name, mode: 0o644, data: data})
	}
	return tarball(l.files, r.date)
}
