// UltraServe's mark: trays of a rack.
export function Mark() {
  return (
    <svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="7" />
      <g>
        <rect x="7" y="7" width="8" height="5" rx="1.2" />
        <rect x="17" y="7" width="8" height="5" rx="1.2" />
        <rect x="7" y="13.5" width="8" height="5" rx="1.2" opacity=".75" />
        <rect x="17" y="13.5" width="8" height="5" rx="1.2" opacity=".75" />
        <rect x="7" y="20" width="8" height="5" rx="1.2" opacity=".5" />
        <rect x="17" y="20" width="8" height="5" rx="1.2" opacity=".5" />
      </g>
    </svg>
  );
}
