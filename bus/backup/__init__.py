"""A back-up of an installation: its streams, and the images of its nodes on this machine. No secrets.

    DIR/SHA256SUMS                                   `sha256sum -c SHA256SUMS`
    DIR/manifest.json                                what it is of (manifest.Manifest)
    DIR/streams/<stream>/{backup.json,stream.tar.s2} as `nats stream backup` leaves them
    DIR/layers/<sha256>.erofs                        layers of images, each once

It grows in a directory beside DIR, and is renamed when all of it is on the disk: what is called DIR is whole.
A restore reads all of it first, makes the streams in a broker of its own inside the home, and renames the
finished store into its place as the last step: whatever it is killed at, it can be run again.
"""
