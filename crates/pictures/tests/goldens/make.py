"""Makes decoded/, gemma3-vision.safetensors and gemma4.* beside this file.

Takes numpy, Pillow, safetensors and transformers, and the folder of the golden model gemma3-vision.
"""
import hashlib, io, json, math, struct, sys, zlib
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, features
from safetensors.numpy import load_file, save_file
import transformers
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil, get_aspect_ratio_preserving_size

HERE = Path(__file__).parent
VISION = Path(sys.argv[1])
random = np.random.default_rng(19)


def scene(width, height, channels=3):
    """Smooth colours, an edge and some noise: what filters and subsampled colours change most."""
    y, x = np.mgrid[0:height, 0:width].astype(float)
    planes = []
    for c in range(channels):
        plane = 127 + 90 * np.sin(x / (3 + c) + c) * np.cos(y / (5 - c * 0.5)) + random.normal(0, 12, x.shape)
        plane[(x > width * 0.6) & (y > height * 0.4)] = 30 + 60 * c
        planes.append(plane)
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width, height, depth, colour, packed_rows, extra=b"", interlace=0):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    data = zlib.compress(b"".join(b"\0" + row for row in packed_rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def interlaced(pixels):
    """Rows of the seven passes of Adam7 over (height, width, channels)."""
    rows = []
    for top, left, down, right in [(0,0,8,8),(0,4,8,8),(4,0,8,4),(0,2,4,4),(2,0,4,2),(0,1,2,2),(1,0,2,1)]:
        part = pixels[top::down, left::right]
        if part.shape[1]:
            rows += [row.tobytes() for row in part]
    return rows


def saved(image, form, **options):
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def exif(orientation):
    return b"Exif\0\0" + b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def gif(screen, frame, palette, indices, transparent=None, interlace=False):
    """A GIF of one frame with 8-bit indices; LZW as literals with a clear code between them."""
    (left, top), (width, height) = frame, indices.shape[::-1]
    out = b"GIF89a" + struct.pack("<HHBBB", *screen, 0xf7, 5, 0) + palette
    if transparent is not None:
        out += b"\x21\xf9\x04\x01\0\0" + bytes([transparent]) + b"\0"
    out += b"," + struct.pack("<HHHHB", left, top, width, height, 0x40 if interlace else 0) + b"\x08"
    order = range(height)
    if interlace:
        order = [*range(0, height, 8), *range(4, height, 8), *range(2, height, 4), *range(1, height, 2)]
    codes = []
    for number, value in enumerate(indices[list(order)].ravel()):
        if number % 200 == 0:
            codes.append(256)
        codes.append(int(value))
    codes.append(257)
    bits = sum(code << (9 * place) for place, code in enumerate(codes))
    data = bits.to_bytes((9 * len(codes) + 7) // 8, "little")
    for start in range(0, len(data), 255):
        part = data[start:start + 255]
        out += bytes([len(part)]) + part
    return out + b"\0;"


def files():
    w, h = 37, 29
    rgb, rgba = scene(w, h), scene(w, h, 4)
    gray = rgb[..., 0]
    image = Image.fromarray(rgb)
    packed = lambda bits: [np.packbits(np.unpackbits(row[:, None], axis=1)[:, :bits].ravel()).tobytes() for row in gray]
    for bits in (1, 2, 4):
        yield f"gray{bits}.png", png(w, h, bits, 0, packed(bits))
    wide = random.integers(0, 65536, (h, w, 3), dtype=np.uint16).astype(">u2")
    yield "rgb16.png", png(w, h, 16, 2, [row.tobytes() for row in wide])
    yield "rgb-transparent.png", png(w, h, 8, 2, [row.tobytes() for row in rgb], chunk(b"tRNS", struct.pack(">HHH", *map(int, rgb[3, 3]))))
    yield "rgb-interlaced.png", png(w, h, 8, 2, interlaced(rgb), interlace=1)
    yield "rgba-interlaced.png", png(w, h, 8, 6, interlaced(rgba), interlace=1)
    yield "rgba16.png", png(w, h, 16, 6, [row.tobytes() for row in random.integers(0, 65536, (h, w, 4), dtype=np.uint16).astype(">u2")])
    yield "gray-alpha.png", saved(Image.fromarray(rgba[..., :2], "LA"), "PNG")
    palette = bytes(random.integers(0, 256, 768, dtype=np.uint8))
    yield "palette-alpha.png", png(w, h, 8, 3, [row.tobytes() for row in gray], chunk(b"PLTE", palette) + chunk(b"tRNS", bytes(range(200))))
    yield "palette4.png", png(w, h, 4, 3, packed(4), chunk(b"PLTE", palette[:48]))
    yield "exif8.png", saved(image, "PNG", exif=exif(8))
    yield "animated.png", saved(image, "PNG", save_all=True, append_images=[Image.fromarray(255 - rgb)])
    for name, options in [("444", {"subsampling": 0}), ("422", {"subsampling": 1}), ("420", {"subsampling": 2}),
                          ("progressive", {"progressive": True}), ("quality20", {"quality": 20}), ("exif3", {"exif": exif(3)}),
                          ("restart", {"restart_marker_blocks": 2})]:
        yield f"{name}.jpg", saved(image, "JPEG", **options)
    yield "gray.jpg", saved(Image.fromarray(gray), "JPEG")
    yield "large420.jpg", saved(Image.fromarray(scene(133, 101)), "JPEG", quality=90)
    cmyk = saved(Image.fromarray(rgba, "CMYK"), "JPEG", quality=95)
    yield "cmyk.jpg", cmyk
    at = cmyk.index(b"\xff\xee")
    plain = cmyk[:at] + cmyk[at + 2 + struct.unpack(">H", cmyk[at + 2:at + 4])[0]:]
    yield "cmyk-plain.jpg", plain
    ycck = bytearray(cmyk)
    assert ycck[at + 4:at + 9] == b"Adobe"
    ycck[at + 15] = 2
    yield "ycck.jpg", bytes(ycck)
    yield "lossy.webp", saved(image, "WEBP", quality=80)
    yield "lossless.webp", saved(image, "WEBP", lossless=True)
    yield "lossy-alpha.webp", saved(Image.fromarray(rgba), "WEBP", quality=60)
    yield "lossless-alpha.webp", saved(Image.fromarray(rgba), "WEBP", lossless=True, exact=True)
    yield "exif6.webp", saved(image, "WEBP", quality=80, exif=exif(6))
    yield "animated.webp", saved(image, "WEBP", save_all=True, append_images=[Image.fromarray(255 - rgb)], lossless=True)
    for name, options in [("plain", {}), ("interlaced", {"interlace": True}), ("transparent", {"transparent": 9})]:
        yield f"{name}.gif", gif((w, h), (0, 0), palette, gray, **options)
    yield "small-frame.gif", gif((60, 50), (11, 7), palette, gray)
    yield "small-frame-transparent.gif", gif((60, 50), (11, 7), palette, gray, transparent=9)
    yield "large-frame.gif", gif((20, 50), (11, 7), palette, gray)
    yield "animated.gif", saved(image, "GIF", save_all=True, append_images=[Image.fromarray(255 - rgb)])


def decoded():
    (HERE / "decoded").mkdir(exist_ok=True)
    # Pillow clips these instead of scaling them: the test says what is expected.
    levels = np.array([[0, 255, 256], [4660, 65279, 65535]], dtype=">u2")
    (HERE / "gray16.png").write_bytes(png(3, 2, 16, 0, [row.tobytes() for row in levels]))
    expected = {}
    for name, data in files():
        (HERE / "decoded" / name).write_bytes(data)
        image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        expected[name] = np.asarray(image)
    save_file(expected, HERE / "decoded.safetensors")


def gemma3():
    save_file({"pixel_values": load_file(VISION / "goldens.safetensors")["pixel_values"]}, HERE / "gemma3-vision.safetensors")
    for name in ("a.png", "b.png"):
        (HERE / name).write_bytes((VISION / name).read_bytes())


def gemma4():
    cases, rows = [], {}
    pictures = ["a.png", "b.png", *(f"gemma3/{name}" for name in ("1-1x1.png", "2-3000x200.png", "3-palette.png", "5-rgba.png"))]
    for name in pictures:
        for tokens in (70, 280):
            image = Image.open(HERE / name).convert("RGB")
            out = Gemma4ImageProcessorPil(max_soft_tokens=tokens)(image, return_tensors="np")
            soft = int(out["num_soft_tokens_per_image"][0])
            values, places = out["pixel_values"][0][:soft * 9], out["image_position_ids"][0][:soft * 9]
            assert (out["image_position_ids"][0][soft * 9:] == -1).all()
            columns, grid_rows = (int(v) + 1 for v in places.max(0))
            levels = np.rint(values * 255).astype(np.uint8)
            # 12B joins 3 x 3 patches, keeping the order row, column, channel.
            joined = levels.reshape(grid_rows // 3, 3, columns // 3, 3, 16, 16, 3).transpose(0, 2, 1, 4, 3, 5, 6)
            key = f"{name}/{tokens}"
            rows[key] = np.concatenate([values[:2], values[-1:]]).astype(np.float32)
            cases.append({"file": name, "tokens": tokens, "soft_tokens": soft, "columns": columns, "rows": grid_rows,
                          "sha256_rows_u8": hashlib.sha256(levels.tobytes()).hexdigest(),
                          "sha256_joined_u8": hashlib.sha256(joined.tobytes()).hexdigest()})
    sizes = []
    for _ in range(400):
        width, height = (int(math.exp(random.uniform(0, math.log(20000)))) for _ in range(2))
        tokens = int(random.choice([70, 140, 280, 560, 1120]))
        high, wide = get_aspect_ratio_preserving_size(height, width, 16, tokens * 9, 3)
        sizes.append([width, height, tokens, wide, high])
    save_file(rows, HERE / "gemma4.safetensors")
    versions = {"transformers": transformers.__version__, "pillow": features.version("pil")}
    (HERE / "gemma4.json").write_text(json.dumps({"cases": cases, "sizes": sizes, "versions": versions}))


decoded()
gemma3()
gemma4()
